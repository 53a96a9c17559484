"""The Services of Gateways (`vipwire gateway --services`): which ports they lead to, and what is served of that."""

from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from vipwire.kube.gateway_addresses import CONTROLLER, GATEWAY, OF_CONTROLLER
from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, Upserted
from vipwire_l7.gateway.cli import gateway
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.watch.kinds import RESOURCES
from vipwire_l7.watch.objects import BackendPort, BackendService, IngressKind
from vipwire_l7.watch.snapshot import Snapshot

SETTING = GatewaySetting(services=ObjectName("kube-system", "pods"), service_ports=range(20000, 20003))
CLASS = "{kind: GatewayClass, metadata: {name: vipwire}, spec: {controllerName: vipwire.io/gateway}}"
ONE = "{name: web, port: 80, protocol: HTTP}"


class World:
    """Objects, and the plan of them."""

    def __init__(self) -> None:
        self.snapshot, self.planner = Snapshot(RESOURCES), GatewayPlanner(SETTING)
        self.put(CLASS)

    def put(self, text: str) -> None:
        for each in yaml.safe_load_all(text):
            resource = RESOURCES[IngressKind(each["kind"])]
            made, problems = resource.convert(msgspec.convert(each, resource.type))
            assert made is not None, problems
            self.snapshot.apply(Upserted(made, problems))

    def gateway(self, name: str, *listeners: str, more: str = "") -> None:
        listed = ", ".join(listeners or (ONE,))
        self.put(
            f"{{kind: Gateway, metadata: {{name: {name}, namespace: ns, creationTimestamp: {name}}}, "
            f"spec: {{gatewayClassName: vipwire, listeners: [{listed}]{more}}}}}"
        )

    def service(self, name: str, *ports: tuple[int, int], address: str = "198.51.100.1", whose: str = "") -> None:
        mine = {GATEWAY: whose or name, OF_CONTROLLER: CONTROLLER}
        found = tuple(BackendPort(f"tcp-{number}", number, target=target) for number, target in ports)
        balanced = (address,) if address else ()
        made = BackendService(ObjectName("ns", f"{name}-vipwire"), found, annotations=mine, balanced=balanced)
        self.snapshot.apply(Upserted(made, ()))

    def planned(self) -> tuple[dict[str, dict[tuple[int, bool], int]], list[str]]:
        """Return the ports of Services that are wanted, and where HAProxy listens."""
        self.planner.update(self.snapshot, 0.0)
        wanted = {each.gateway.name: dict(each.targets) for each in (self.planner.services or {}).values()}
        return wanted, [each.bind for each in self.planner.kept.frontends.values()]

    def programmed(self, name: str) -> tuple[str, str]:
        (found,) = [each for each in self.status(name)["conditions"] if each["type"] == "Programmed"]
        return found["reason"], found["message"]

    def status(self, name: str) -> Any:
        return self.planner.statuses[IngressKind.GATEWAY, ObjectName("ns", name)]


def test_a_listener_is_served_once_its_service_says_where() -> None:
    world = World()
    world.gateway("a")
    assert world.planned() == ({"a": {(80, False): 20000}}, [])
    assert world.programmed("a")[0] == "AddressNotAssigned"
    world.service("a", (80, 20000), address="")
    assert world.planned()[1] == ["*:20000"]
    assert world.programmed("a")[0] == "AddressNotAssigned"
    world.service("a", (80, 20000))
    assert world.planned()[1] == ["*:20000"]
    assert world.programmed("a")[0] == "Programmed"
    assert world.status("a")["addresses"] == [{"type": "IPAddress", "value": "198.51.100.1"}]


def test_gateways_with_the_same_port_listen_apart_and_keep_their_ports() -> None:
    world = World()
    world.gateway("b")
    world.service("b", (80, 20000))
    world.gateway("a")  # older, and yet it comes later
    assert world.planned() == ({"a": {(80, False): 20001}, "b": {(80, False): 20000}}, ["*:20000"])
    world.service("a", (80, 20001))
    assert world.planned()[1] == ["*:20000", "*:20001"]


def test_a_new_listener_waits_and_the_others_are_served() -> None:
    world = World()
    world.service("a", (80, 20000))
    world.gateway("a", ONE, "{name: more, port: 81, protocol: HTTP}", "{name: udp, port: 80, protocol: UDP}")
    wanted, binds = world.planned()
    assert wanted == {"a": {(80, False): 20000, (81, False): 20001, (80, True): 20002}}
    assert binds == ["*:20000"]
    web, more, _ = world.status("a")["listeners"]
    (found,) = [each["reason"] for each in more["conditions"] if each["type"] == "Programmed"]
    assert found == "Pending"
    assert [each["reason"] for each in web["conditions"] if each["type"] == "Programmed"] == ["Programmed"]


@pytest.mark.parametrize("strange", [22, 19999, 20003])
def test_a_service_leads_to_ports_of_the_range_alone(strange: int) -> None:
    """Whoever may write Services of a namespace cannot have HAProxy listen where it should not."""
    world = World()
    world.gateway("a")
    world.service("a", (80, strange))
    assert world.planned() == ({"a": {(80, False): 20000}}, [])


def test_of_two_services_that_lead_to_one_port_the_older_gateways_has_it() -> None:
    world = World()
    for name in "ab":
        world.gateway(name)
        world.service(name, (80, 20001))
    assert world.planned() == ({"a": {(80, False): 20001}, "b": {(80, False): 20000}}, ["*:20001"])


def test_a_service_of_another_is_left_alone() -> None:
    world = World()
    world.gateway("a")
    world.service("a", (80, 20000), whose="other")
    assert world.planned() == ({}, [])
    assert world.programmed("a") == ("AddressNotAssigned", "the Service ns/a-vipwire belongs to another owner")


def test_a_range_that_is_used_up_is_told() -> None:
    world = World()
    world.gateway("a", *(f"{{name: l{port}, port: {port}, protocol: TCP}}" for port in range(1, 5)))
    assert world.planned() == ({}, [])
    assert "--service-ports" in world.programmed("a")[1]


def test_an_address_that_is_asked_for_is_the_services_or_none() -> None:
    world = World()
    world.gateway("a", more=", addresses: [{value: 198.51.100.9}, {value: 198.51.100.1}]")
    world.service("a", (80, 20000), address="")
    assert world.planned()[1] == ["*:20000"]
    assert world.programmed("a")[0] == "AddressNotUsable"
    world.gateway("a", more=", addresses: [{value: 198.51.100.9}]")
    world.service("a", (80, 20000))
    world.planned()
    (service,) = (world.planner.services or {}).values()
    assert service.asked == "198.51.100.9"
    assert world.programmed("a")[0] == "AddressNotUsable"
    world.service("a", (80, 20000), address="198.51.100.9")
    world.planned()
    assert world.programmed("a")[0] == "Programmed"


def test_static_addresses_of_a_gateway_with_a_service_go_one_by_one() -> None:
    """GatewayStaticAddresses, each step: the cluster does not assign the unusable address."""
    odd, unusable, usable = "{type: test/odd, value: odd}", "{value: 198.51.100.9}", "{value: 198.51.100.1}"
    world = World()
    seen = []
    for addresses, assigned in (((odd, unusable, usable), ""), ((unusable, usable), ""), ((usable,), "198.51.100.1")):
        world.gateway("a", more=f", addresses: [{', '.join(addresses)}]")
        world.planned()
        world.service("a", (80, 20000), address=assigned)
        world.planned()
        reasons = {each["type"]: (each["status"], each["reason"]) for each in world.status("a")["conditions"]}
        seen.append((reasons["Accepted"], reasons["Programmed"]))
    accepted = ("True", "Accepted")
    assert seen == [
        (("False", "UnsupportedAddress"), ("False", "Invalid")),
        (accepted, ("False", "AddressNotUsable")),
        (accepted, ("True", "Programmed")),
    ]
    assert world.status("a")["addresses"] == [{"type": "IPAddress", "value": "198.51.100.1"}]
    (listener,) = world.status("a")["listeners"]
    conditions = {each["type"]: each["status"] for each in listener["conditions"]}
    assert (conditions["Accepted"], conditions["ResolvedRefs"], listener["attachedRoutes"]) == ("True", "True", 0)


def test_a_service_that_goes_is_planned_anew() -> None:
    world = World()
    world.gateway("a")
    world.service("a", (80, 20000))
    world.planner.update(world.snapshot, 0.0)
    name = ObjectName("ns", "a-vipwire")
    assert (IngressKind.SERVICE, name) in world.planner.looked_at
    world.snapshot.apply(Deleted(IngressKind.SERVICE, name, ()))
    assert world.planned()[1] == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--services", "pods"), "is not NAMESPACE/NAME"),
        (("--services", "a/b", "--address-pool", "192.0.2.0/28"), "comes from one of them"),
        (("--services", "a/b", "--manifests", "/nowhere"), "--services needs an API server"),
        (("--service-ports", "22000-20000"), "is no range"),
    ],
)
def test_flags_that_do_not_fit_are_refused(flags: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(gateway, flags)
    assert done.exit_code != 0
    assert said in done.output
