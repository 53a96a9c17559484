"""What the rules do to a packet, as they are observed: shares, masquerade, refusals, and what is not as planned."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.iptables_world import PLAIN, World
from tests.fakes.values import cidr, endpoint, ips, node_plan, port, service, slice_of

from vipwire.model.net import Family, Protocol, parse_address
from vipwire.model.service import TrafficPolicy
from vipwire.modes.iptables.explain import IptablesExplainer, Recent, RuleTables, compute_ticks_per_second, walk_rules
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, JUMP, NAT, ROOT, Key, Rules
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import compute_delta
from vipwire.reconcile.explainer import BY_ADDRESS, BY_CHANCE, IN_TURN, Walk
from vipwire.reconcile.steps import End, ObjectState, Verdict

POD, CLIENT, OTHER = "10.1.0.9", "203.0.113.2", "203.0.113.200"
NODE = "192.168.0.2"


@pytest.fixture
def world() -> World:
    """Services: web with two endpoints and every frontend, none without, and one that remembers its clients."""
    made = World(node=replace(node_plan(), service_cidrs=(cidr("10.96.0.0/16"),)))
    web = service(
        "web",
        "10.96.0.1",
        port(node_port=30080),
        load_balancer_ips=ips("1.2.3.4"),
        source_ranges=(cidr("203.0.113.0/25"),),
    )
    made.put(web, slice_of("web", endpoint("10.1.0.1"), endpoint("10.2.0.1")))
    made.put(service("none", "10.96.0.2"))
    local = service("away", "10.96.0.3", load_balancer_ips=ips("1.2.3.5"), external_policy=TrafficPolicy.LOCAL)
    made.put(local, slice_of("away", endpoint("10.2.0.1", "node-2")))
    made.put(service("sticky", "10.96.0.4", affinity_seconds=60), slice_of("sticky", endpoint("10.1.0.1")))
    made.sync()
    return made


def objects(world: World) -> dict[Key, Rules]:
    return world.backend.observe()


def packet(source: str, to: str, number: int = 80, **more: bool) -> Packet:
    interface = "" if more.get("from_node") else "eth0"
    return Packet(parse_address(source), parse_address(to), Protocol.TCP, number, interface, **more)


def way(
    world: World, asked: Packet, change: Callable[[dict[Key, Rules]], None] = lambda _: None, **recall: object
) -> Walk:
    wanted = objects(world)
    seen = dict(wanted)
    change(seen)
    table = RuleTables(Family.IPV4, seen, wanted, frozenset({parse_address(NODE)}))
    return walk_rules(table, asked, **recall)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [("random", BY_CHANCE), ("round-robin", IN_TURN), ("source-hash", f"{BY_ADDRESS}, the same on every node")],
)
def test_how_an_endpoint_is_chosen_is_what_the_rules_do(algorithm: str, said: str) -> None:
    made = World()
    chosen = service(annotations=(("vipwire.io/algorithm", algorithm),))
    made.put(chosen, slice_of("web", endpoint("10.1.0.1"), endpoint("10.2.0.1")))
    made.sync()
    assert way(made, packet(POD, "10.96.0.1")).choice == said


@pytest.mark.parametrize(("count", "more"), [(4, []), (5, []), (6, [2])])
def test_one_more_endpoint_is_shown_and_several_are_counted(count: int, more: list[int]) -> None:
    made = World()
    made.put(service(), slice_of("web", *(endpoint(f"10.1.0.{number}") for number in range(1, count + 1))))
    made.sync()
    found = [effect for step in way(made, packet(POD, "10.96.0.1")).steps for effect in step.effects]
    assert [effect.detail for effect in found if effect.verdict is Verdict.MORE] == more


def test_affinity_without_rules_for_it_is_said(world: World) -> None:
    sticky = packet(POD, "10.96.0.4")
    assert way(world, sticky).affinity == ""
    forgetting = World(settings=replace(PLAIN, affinity=False))
    forgetting.put(service("sticky", "10.96.0.4", affinity_seconds=60), slice_of("sticky", endpoint("10.1.0.1")))
    forgetting.sync()
    assert "no rule for session affinity" in way(forgetting, sticky).affinity


def test_a_remembered_client_is_told_with_what_is_left(world: World) -> None:
    found = way(world, packet(POD, "10.96.0.4"), recall=lambda _: 20.0)
    assert found.remembered == (parse_address("10.1.0.1"), 8080, 40.0)
    assert way(world, packet(POD, "10.96.0.4"), recall=lambda _: 61.0).remembered is None


def test_what_is_missing_is_named(world: World) -> None:
    def without_entry(seen: dict[Key, Rules]) -> None:
        for key in [key for key in seen if key.kind == ENTRY and key.table == NAT and "web cluster" in seen[key][0]]:
            del seen[key]

    found = way(world, packet(POD, "10.96.0.1"), without_entry)
    assert found.end is End.REJECTED, "KUBE-CLUSTER-IPS takes what nat leaves"
    assert [step.state for step in found.steps].count(ObjectState.MISSING) == 1

    def without_jumps(seen: dict[Key, Rules]) -> None:
        for key in [key for key in seen if key.kind == JUMP]:
            del seen[key]

    found = way(world, packet(POD, "10.96.0.1"), without_jumps)
    assert found.end is End.UNTOUCHED
    assert ObjectState.MISSING in {step.state for step in found.steps}


@pytest.mark.parametrize(
    "rule", ["-m time --timestart 10:00 -j DROP", "-j TPROXY --on-port 1", '-m comment --comment "']
)
def test_what_somebody_added_and_is_not_understood_makes_the_end_unknown(world: World, rule: str) -> None:
    def add(seen: dict[Key, Rules]) -> None:
        (key,) = (key for key in seen if key.kind == CHAIN and key.chain == "KUBE-MARK-MASQ")
        seen[key] = (rule, *seen[key])

    assert way(world, packet(CLIENT, "10.96.0.1"), add).end is End.UNKNOWN


def test_a_rule_of_somebody_else_counts_and_is_told_apart(world: World) -> None:
    def add(seen: dict[Key, Rules]) -> None:
        seen[Key(ROOT, "filter", "KUBE-SERVICES")] = ("-s 10.1.0.9/32 -j DROP",)

    found = way(world, packet(POD, "198.51.100.1"), add)
    assert found.end is End.DROPPED
    assert ObjectState.DIFFERENT in {step.state for step in found.steps}


def test_the_script_is_what_a_sync_would_write(world: World) -> None:
    held = objects(world)
    world.tables.log.clear()
    world.put(service("new", "10.96.0.9"), slice_of("new", endpoint("10.1.0.7")))
    lines = list(IptablesExplainer(world.backend).write_script(compute_delta(held, world.reconciler.desired())))
    world.sync()
    assert "\n".join(lines) == "".join(world.tables.log).rstrip("\n")


def test_the_kernels_lists_are_read_in_seconds(tmp_path: Path) -> None:
    uptime, rate = 5000.0, 250
    now = int((1 << 32) - 300 * rate + uptime * rate)
    assert compute_ticks_per_second(now, uptime) == rate
    (tmp_path / "timers").write_text(f"Timer List\njiffies: {now}\n")
    (tmp_path / "KUBE-SEP-X").write_text(f"src=10.1.0.9 ttl: 63 last_seen: {now - 4000} oldest_pkt: 1 {now - 4000}\n")
    recent = Recent(tmp_path, tmp_path / "timers")
    ago = recent.compute_seconds_since_seen("KUBE-SEP-X", parse_address("10.1.0.9"))
    assert ago in {4000 / each for each in (100, 250, 300, 1000)}
    assert recent.compute_seconds_since_seen("KUBE-SEP-X", parse_address("10.1.0.8")) is None
    assert recent.compute_seconds_since_seen("KUBE-SEP-Y", parse_address("10.1.0.9")) is None
