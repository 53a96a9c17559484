"""The Ingresses that `vipwire ingress` serves, and their statuses."""

import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial

from vipwire.kube.access.access import Access
from vipwire.logging import log
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.limits import Limited
from vipwire_l7.run.app import ControllerInput, Options, Part
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter, write_statuses
from vipwire_l7.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import IngressKind, Json
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot


class IngressStatuses:
    """The statuses of Ingresses. `addresses` returns the addresses to publish, None if their Service is missing."""

    def __init__(
        self, planner: IngressPlanner, snapshot: Snapshot, addresses: Callable[[], tuple[str, ...] | None]
    ) -> None:
        self._planner, self._snapshot, self._addresses = planner, snapshot, addresses
        self._published: tuple[str, ...] | None = None

    @property
    def revision(self) -> int | None:
        """A count of changes; None before the first plan, and without addresses."""
        if self._addresses() is None or self._planner.revision is None:
            return None
        return self._planner.revision + self._snapshot.count_events((IngressKind.SERVICE,))

    def list_all(self) -> Iterable[ObjectRef]:
        return self._planner.list_ours()

    def take_changed(self) -> Collection[ObjectRef]:
        before, self._published = self._published, self._addresses()
        told = self._planner.take_changed_ingresses()
        return told if before == self._published else {*self.list_all()}

    def make_patch(self, ref: ObjectRef, _now: str) -> Json | None:
        ingress, addresses = self._snapshot.ingresses.get(ref[1]), self._published
        if ingress is None or addresses is None or ingress.addresses == addresses or not self._planner.serves(ref):
            return None
        entries = [{"ip" if _is_address(text) else "hostname": text} for text in addresses]
        status = {"loadBalancer": {"ingress": entries}}
        return {"metadata": {"resourceVersion": ingress.version}, "status": status}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


class Ingresses:
    """Ingresses with the settings of an operator's flags."""

    def __init__(self, options: Options) -> None:
        self._options, self._missed = options, False
        self._planner = IngressPlanner(options.setting)

    @property
    def served(self) -> ControllerInput:
        """Return the input of the process. It writes statuses if there are addresses to publish."""
        publishes = self._options.addresses or self._options.publish_service
        return ControllerInput(self._planner, parts=self._list_writers if publishes else None)

    def _list_writers(
        self, access: Access, snapshot: Snapshot, desired: Desired, leading: Callable[[], bool]
    ) -> Iterator[tuple[str, Part]]:
        statuses = IngressStatuses(self._planner, snapshot, lambda: self._find_published_addresses(snapshot))
        kinds = {IngressKind.INGRESS: RESOURCES[IngressKind.INGRESS]}
        rate = Rate(self._options.setting.limits[Limited.STATUSES])
        writer = StatusWriter(access, kinds, statuses, snapshot, leading, rate)
        yield "status", partial(write_statuses, writer, desired)

    def _find_published_addresses(self, snapshot: Snapshot) -> tuple[str, ...] | None:
        """Return the addresses to publish; None while the Service that has them does not exist."""
        name = self._options.publish_service
        if name is None:
            return self._options.addresses
        found = snapshot.services.get(name)
        if found is None and snapshot.complete and not self._missed:
            log.warning("--publish-service: Service not found; Ingress statuses are not written", object=name)
            self._missed = True
        return found.published if found else None
