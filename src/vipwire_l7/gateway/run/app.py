"""Wires `vipwire gateway`: the process of `vipwire ingress`, with other kinds and another planner."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from vipwire.kube.access.access import Access
from vipwire.kube.errors import ApiError, UnreachableError
from vipwire.kube.objects import ObjectClient
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.merged_statuses import GatewayStatuses
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.datagrams import DatagramRelay
from vipwire_l7.gateway.run.service_writer import ServiceWriter
from vipwire_l7.gateway.run.shared_planner import SharedPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES, VERSIONS, WITH_INGRESS, choose_versions, make_manifest_reader
from vipwire_l7.plan.limits import Limited
from vipwire_l7.run.app import ControllerInput, Part
from vipwire_l7.run.controller import Controller
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.status_writer import StatusWriter, write_statuses
from vipwire_l7.watch.kinds import IngressResource
from vipwire_l7.watch.objects import INGRESS_KINDS, IngressKind
from vipwire_l7.watch.snapshot import Snapshot


class _Entry(msgspec.Struct):
    name: str = ""


class _List(msgspec.Struct):
    resources: tuple[_Entry, ...] = ()


async def read_served_versions(access: Access) -> dict[str, frozenset[str]]:
    """Return the plurals that the server serves, by API version; none if the server does not answer."""
    found: dict[str, frozenset[str]] = {}
    async with ObjectClient(access, "vipwire-gateway") as client:
        for version in (f"{group}/{each}" for group, versions in VERSIONS.items() for each in versions):
            try:
                listed = await client.read(f"/apis/{version}", _List) or _List()
            except UnreachableError:
                continue
            except ApiError:
                listed = _List()
            found[version] = frozenset(each.name for each in listed.resources)
    return found


class GatewayParts:
    """The parts that `vipwire gateway` adds to the process: kinds, planner, and writers of statuses and Services."""

    def __init__(
        self,
        setting: GatewaySetting,
        udp_timeout: float = 60.0,
        reached: Callable[[], tuple[str, ...]] | None = None,
        ingresses: ControllerInput | None = None,
    ) -> None:
        """`udp_timeout`: seconds without a datagram after which the relay forgets a client of a UDPRoute.

        If `ingresses` is given, the process serves these as well.
        """
        self._setting, self._udp_timeout = setting, udp_timeout
        self._planner = GatewayPlanner(setting, reached)
        self._kinds = WITH_INGRESS if ingresses else RESOURCES
        self._all = SharedPlanner(ingresses.planner, self._planner) if ingresses else self._planner
        self._ingresses = ingresses
        self._resources: Mapping[IngressKind, IngressResource] = self._kinds

    @property
    def served(self) -> ControllerInput:
        return ControllerInput(
            self._all,
            self._kinds,
            make_manifest_reader(self._kinds),
            self._choose_versions,
            self._list_writers,
            self._make_relay,
        )

    def _make_relay(self, folder: Path, controller: Controller, registry: CollectorRegistry) -> DatagramRelay:
        return DatagramRelay(folder, controller, registry, self._udp_timeout)

    async def _choose_versions(self, access: Access) -> Mapping[IngressKind, IngressResource]:
        self._resources = choose_versions(self._kinds, await read_served_versions(access))
        return self._resources

    def _list_writers(
        self, access: Access, snapshot: Snapshot, desired: Desired, leading: Callable[[], bool]
    ) -> Iterator[tuple[str, Part]]:
        statuses = GatewayStatuses(self._planner, snapshot, self._setting.controller)
        kinds = {kind: each for kind, each in self._resources.items() if kind not in INGRESS_KINDS}
        rate = Rate(self._setting.limits[Limited.STATUSES])
        writer = StatusWriter(access, kinds, statuses, snapshot, leading, rate)
        yield "statuses", partial(write_statuses, writer, desired)
        if self._ingresses and self._ingresses.parts:
            yield from self._ingresses.parts(access, snapshot, desired, leading)
        pods = self._setting.services
        if pods is not None:
            services = ServiceWriter(access, pods, self._setting.controller, snapshot, leading)

            async def write_services() -> None:
                with desired.call_after_changes(services.wake):
                    await services.run(lambda: self._planner.services)

            yield "Gateways' Services", write_services
