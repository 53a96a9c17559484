"""The Ingresses that `vipwire ingress` serves, and their statuses."""

from collections.abc import Callable, Iterator
from functools import partial

from vipwire.kube.access.access import Access
from vipwire.logging import log
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.ingress.status import IngressStatuses
from vipwire_l7.plan.limits import Limited
from vipwire_l7.run.app import Options, Part, Served
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter, write_statuses
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot


class Ingresses:
    """Ingresses with the settings of an operator's flags."""

    def __init__(self, options: Options) -> None:
        self._options, self._missed = options, False
        self._planner = IngressPlanner(options.setting)

    @property
    def served(self) -> Served:
        """Return the input of the process. It writes statuses if there are addresses to publish."""
        publishes = self._options.addresses or self._options.publish_service
        return Served(self._planner, parts=self._parts if publishes else None)

    def _parts(
        self, access: Access, snapshot: Snapshot, desired: Desired, leading: Callable[[], bool]
    ) -> Iterator[tuple[str, Part]]:
        statuses = IngressStatuses(self._planner, snapshot, lambda: self._addresses(snapshot))
        kinds = {IngressKind.INGRESS: RESOURCES[IngressKind.INGRESS]}
        rate = Rate(self._options.setting.limits[Limited.STATUSES])
        writer = StatusWriter(access, kinds, statuses, snapshot, leading, rate)
        yield "status", partial(write_statuses, writer, desired)

    def _addresses(self, snapshot: Snapshot) -> tuple[str, ...] | None:
        """Return the addresses to publish; None while the Service that has them does not exist."""
        name = self._options.publish_service
        if name is None:
            return self._options.addresses
        found = snapshot.services.get(name)
        if found is None and snapshot.complete and not self._missed:
            log.warning("--publish-service: Service not found; Ingress statuses are not written", object=name)
            self._missed = True
        return found.published if found else None
