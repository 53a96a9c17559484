"""A lab whose first node ipvs mode serves inside this process, for tests in a guest."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.fakes.clock import Clock
from tests.fakes.values import named

from vipwire.linux.host.settings import apply_sysctls
from vipwire.linux.netlink.ipvs import Timeouts
from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Prefix, Protocol, family_of, parse_address
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from vipwire.modes.ipvs.driver import build_backends, ipvs_sysctls
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.objects.device import Device
from vipwire.modes.ipvs.objects.names import MarkRule, Object, ObjectKey, SetEntry, Vip, VipRoute, describe_object
from vipwire.modes.ipvs.objects.policy_routing import PolicyRouting
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.objects.sets import Sets
from vipwire.modes.ipvs.render import IpvsSettings
from vipwire.plan.node import NodePlan, PodPrefixes
from vipwire.plan.planner import Planner
from vipwire.reconcile.reconciler import Reconciler, Report
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.outcome import ProbeResult

NODE = "node-1"
EVERYWHERE = {Family.IPV4: "0.0.0.0/0", Family.IPV6: "::/0"}
PODS = {Family.IPV4: "10.244.0.0/16", Family.IPV6: "fd00:10:244::/48"}
VIP = {Family.IPV4: "10.96.0.10", Family.IPV6: "fd00:10:96::10"}
EXTERNAL = {Family.IPV4: "198.51.100.10", Family.IPV6: "2001:db8:5::10"}
BALANCER = {Family.IPV4: "198.51.100.20", Family.IPV6: "2001:db8:5::20"}
TCP = ServicePort("", Protocol.TCP, 80)
FAMILIES = pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)


def in_turn(names: str, *cases: Any, first: Family = Family.IPV4) -> pytest.MarkDecorator:
    """Parametrize by cases, each in one family in turn: one code writes both families' objects."""
    order = [first, *(family for family in Family if family is not first)]
    values = [
        (*(case if isinstance(case, tuple) else (case,)), family)
        for case, family in zip(cases, itertools.cycle(order), strict=False)
    ]
    return pytest.mark.parametrize(
        f"{names}, family", values, ids=["-".join([*map(str, case), family.value]) for *case, family in values]
    )


class Line:
    """One family of one proxy: plans, objects, kernel."""

    def __init__(self, lab: Lab, family: Family, settings: IpvsSettings, host: str = NODE) -> None:
        self.family = family
        self.clock = Clock()
        self._lab, self._host = lab, host
        with lab.enter_namespace(host):
            self.backend = IpvsBackend(family, settings, self.clock)
        self.reconciler: Reconciler[ObjectKey, Object] = Reconciler(self.backend)
        own = tuple(a for a in map(parse_address, lab.find_host(host).addresses) if family_of(a) is family)
        node = NodePlan(
            family,
            host,
            address=own[0],
            pod_traffic=PodPrefixes((Prefix.parse(PODS[family]),)),
            node_port_addresses=(Prefix.parse(EVERYWHERE[family]),),
            addresses=own,
            port_ranges=True,
        )
        self.planner = Planner(node)
        self.reconciler.desire_node(self.backend.render_node(node))

    def remains(self) -> Iterator[ObjectKey]:
        """Yield objects that no node has without Services, with the least reading."""
        with contextlib.ExitStack() as stack:
            with self._lab.enter_namespace(self._host):
                servers = stack.enter_context(contextlib.closing(IpvsServers(self.family)))
                sets = stack.enter_context(contextlib.closing(Sets(self.family)))
                device = stack.enter_context(contextlib.closing(Device(self.family)))
                routing = stack.enter_context(contextlib.closing(PolicyRouting(self.family)))
            yield from servers.read_services()
            yield from (key for key in sets.read() if isinstance(key, SetEntry))
            yield from map(Vip, device.addresses())
            yield from map(MarkRule, routing.list_marks())
            yield from map(VipRoute, routing.list_routes())


class IpvsProxy:
    """ipvs mode of both families on the lab's first node."""

    def __init__(self, lab: Lab, settings: IpvsSettings | None = None, *, empty: bool = True) -> None:
        self.lab = lab
        self._settings = settings or IpvsSettings()
        self.objects: dict[ObjectName, tuple[Service, tuple[EndpointSlice, ...]]] = {}
        with lab.enter_namespace(NODE):
            apply_sysctls(ipvs_sysctls((6, 1), strict_arp=False))
            for backend in build_backends(Family, self._settings, Timeouts()).values():
                backend.close()
            self.lines = {family: Line(lab, family, self._settings) for family in Family}
        if empty:  # otherwise the first Service writes first
            self.sync()

    def close(self) -> None:
        """Close the backends; the kernel's objects stay."""
        for line in self.lines.values():
            line.backend.close()

    @contextlib.contextmanager
    def restarted(self) -> Iterator["IpvsProxy"]:
        """Give a new process's proxy with the same objects for the block."""
        other = object.__new__(IpvsProxy)
        other.lab, other._settings, other.objects = self.lab, self._settings, dict(self.objects)
        with self.lab.enter_namespace(NODE):
            other.lines = {family: Line(self.lab, family, self._settings) for family in Family}
        with contextlib.closing(other):
            for name in other.objects:
                other._plan(name)
            yield other

    def put(self, service: Service, *slices: EndpointSlice) -> dict[Family, Report[ObjectKey]]:
        self.objects[service.name] = service, slices
        self._plan(service.name)
        return self.sync()

    def drop(self, name: str) -> dict[Family, Report[ObjectKey]]:
        del self.objects[named(name)]
        self._plan(named(name))
        return self.sync()

    def sync(self) -> dict[Family, Report[ObjectKey]]:
        with self.lab.enter_namespace(NODE):
            return {family: line.reconciler.sync() for family, line in self.lines.items()}

    def check(self) -> dict[Family, bool]:
        """Look for drift, as the loop does every sync period, and repair it; return which family had some."""
        with self.lab.enter_namespace(NODE):
            found = {family: line.reconciler.verify() for family, line in self.lines.items()}
        self.sync()
        self.housekeep()
        return found

    def housekeep(self) -> None:
        for line in self.lines.values():
            line.backend.housekeep()

    def forget(self) -> list[str]:
        """Remove all Services; return remaining objects, also those of others."""
        for name in self.objects:
            self.objects = {key: value for key, value in self.objects.items() if key != name}
            self._plan(name)
        self.sync()
        self.housekeep()
        self.sync()
        return [describe_object(key) for line in self.lines.values() for key in line.remains()]

    def clean(self) -> None:
        with self.lab.enter_namespace(NODE):
            for line in self.lines.values():
                line.backend.delete()

    def ipvsadm(self, *arguments: str) -> str:
        return str(self.lab.run(NODE, ["ipvsadm", *arguments]).stdout)

    def saved(self) -> list[str]:
        """List virtual and real servers in ipvsadm's save format."""
        return self.ipvsadm("-Sn").splitlines()

    def state(self) -> str:
        """Print all state of the node that ipvs mode may touch."""
        texts = [self.ipvsadm("-Sn")]
        commands = (["ipset", "save"], ["iptables-legacy-save"], ["ip6tables-legacy-save"], ["ip", "-o", "address"])
        texts += [str(self.lab.run(NODE, command).stdout) for command in commands]
        lines = "".join(texts).splitlines()
        lines = [line.partition(": ")[2] if ": kube-ipvs0" in line else line for line in lines]
        return "\n".join(line for line in lines if not line.startswith(("#", ":", "*", "COMMIT")))

    def probe(self, host: str, address: str, port: int = 80, **more: Any) -> list[ProbeResult]:
        return self.lab.probe(host, address, port, **more)

    def _plan(self, name: ObjectName) -> None:
        for line in self.lines.values():
            for changed, change in line.planner.update([name], self.view).items():
                line.reconciler.desire(changed, change.new)

    def view(self, name: ObjectName) -> tuple[Service | None, Sequence[EndpointSlice]]:
        return self.objects.get(name, (None, ()))


def slices(
    lab: Lab, service: str, pods: Sequence[str], port: int = 80, protocol: Protocol = Protocol.TCP, name: str = ""
) -> tuple[EndpointSlice, ...]:
    """Make a Service's slices of both families from the names of Pods."""

    def endpoints(family: Family) -> Iterator[Endpoint]:
        for pod in pods:
            yield Endpoint(parse_address(lab.address_of(pod, family)), node=lab.topology.node_of(pod))

    ports = (EndpointPort(name, protocol, port),)
    return tuple(
        EndpointSlice(
            named(f"{service}-{family.value.lower()}-{protocol.label}"),
            named(service),
            family,
            ports,
            tuple(endpoints(family)),
        )
        for family in Family
    )


def web(**fields: Any) -> Service:
    """Make the dual-stack Service `web` with a ClusterIP, by default with port 80/TCP."""
    ports = fields.pop("ports", (TCP,))
    return Service(named("web"), ports, tuple(map(parse_address, VIP.values())), **fields)


_PORTS = itertools.count(7000)


def fresh_port() -> ServicePort:
    """Make a port that no earlier test had, because a returning real server has its old connections.

    The kernel keeps it while they are in TIME_WAIT, two minutes, and wlc and lc count these too.
    """
    return ServicePort("", Protocol.TCP, next(_PORTS))


def annotated(**pairs: str) -> tuple[tuple[str, str], ...]:
    """Make annotations of vipwire: `slow_start="30s"`."""
    return tuple(sorted((f"vipwire.io/{key.replace('_', '-')}", value) for key, value in pairs.items()))


def addresses(of: dict[Family, str]) -> tuple[Any, ...]:
    return tuple(map(parse_address, of.values()))


@contextlib.contextmanager
def proxied(lab: Lab, settings: IpvsSettings | None = None, *, empty: bool = True) -> Iterator[IpvsProxy]:
    """Run ipvs mode for the block, and remove everything of it afterwards."""
    proxy = IpvsProxy(lab, settings, empty=empty)
    try:
        yield proxy
    finally:
        proxy.clean()
        proxy.close()
