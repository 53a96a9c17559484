"""What `vipwire ingress` serves: Ingresses, and their status at an API server."""

from collections.abc import Callable, Iterator
from functools import partial

from vipwire.kube.access.access import Access
from vipwire.logging import log
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.ingress.status import IngressStatuses
from vipwire_l7.run.app import Options, Part, Served
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.status_writer import StatusWriter, write_statuses
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot


class Ingresses:
    """Ingresses as an operator's flags want them."""

    def __init__(self, options: Options) -> None:
        self._options, self._missed = options, False
        self._planner = IngressPlanner(options.setting)

    @property
    def served(self) -> Served:
        """Return what the process serves. Statuses are written where addresses to publish are given."""
        publishes = self._options.addresses or self._options.publish_service
        return Served(self._planner, parts=self._parts if publishes else None)

    def _parts(
        self, access: Access, snapshot: Snapshot, desired: Desired, leading: Callable[[], bool]
    ) -> Iterator[tuple[str, Part]]:
        statuses = IngressStatuses(self._planner, snapshot, lambda: self._addresses(snapshot))
        kinds = {IngressKind.INGRESS: RESOURCES[IngressKind.INGRESS]}
        yield "status", partial(write_statuses, StatusWriter(access, kinds, statuses, snapshot, leading), desired)

    def _addresses(self, snapshot: Snapshot) -> tuple[str, ...] | None:
        """Return what to publish; None as long as the Service that tells is not there."""
        name = self._options.publish_service
        if name is None:
            return self._options.addresses
        found = snapshot.services.get(name)
        if found is None and snapshot.complete and not self._missed:
            log.warning("--publish-service: it does not exist; no status is written", object=name)
            self._missed = True
        return found.published if found else None
