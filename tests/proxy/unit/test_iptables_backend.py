"""The backend on tables in memory: it finds what it wrote, takes over what kube-proxy left, touches nothing else."""

import contextlib

import pytest
from tests.fakes.iptables import FakeTables, FakeTool, FakeWitness
from tests.fakes.iptables_world import PLAIN, World
from tests.fakes.values import cidr, endpoint, ips, named, node_plan, port, service, slice_of

from vipwire.errors import CommitError, DecodeError
from vipwire.model.service import Service
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, NAT
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.tool import Variant
from vipwire.plan.frontends import plan_service

FLAT = RuleSettings(counters=False, tree=False)


def web(name: str = "web", number: int = 1, **fields: object) -> Service:
    return service(name, f"10.96.0.{number}", port(node_port=30000 + number), **fields)


def loaded(count: int = 3, *, settings: RuleSettings = PLAIN, variant: Variant = Variant.LEGACY) -> World:
    """Make a world with Services of several kinds, and sync it."""
    world = World(settings=settings, variant=variant)
    fill(world, count)
    world.sync()
    return world


def fill(world: World, count: int = 3) -> None:
    for number in range(1, count + 1):
        guarded = {"load_balancer_ips": ips(f"1.2.3.{number}"), "source_ranges": (cidr("203.0.113.0/24"),)}
        fields = guarded if number % 3 == 1 else {"affinity_seconds": 60} if number % 3 == 2 else {}
        piece = slice_of(f"s{number}", endpoint(f"10.1.{number}.1"), endpoint(f"10.1.{number}.2"))
        world.put(web(f"s{number}", number, **fields), *([] if number % 5 == 0 else [piece]))


def test_what_a_new_process_reads_of_its_chains_are_the_rules_that_it_has_rendered() -> None:
    old = World()
    web_1, piece = web("s1", 1), slice_of("s1", endpoint("10.1.1.1"), endpoint("10.1.1.2"))
    old.put(web_1, piece)
    old.sync()
    (changed,) = [chain for chain in old.tables.tables[NAT] if chain.startswith("KUBE-SVC-")]
    old.chain(changed).append("-j ACCEPT")
    backend = IptablesBackend(FakeTool(old.tables), PLAIN, FakeWitness(old.tables))
    backend.render_node(node_plan())
    objects = backend.render(plan_service(node_plan(), web_1, [piece]))
    rendered = objects.own
    backend.expect([objects])
    seen = {key: rules for key, rules in backend.observe().items() if key in rendered and key.kind == CHAIN}
    assert [key.chain for key, rules in seen.items() if rules is not rendered[key]] == [changed]
    assert len(seen) >= 3


def test_both_forms_turn_into_each_other() -> None:
    tree = loaded(60, settings=PLAIN)
    before = {chain: list(rules) for chain, rules in tree.tables.tables["nat"].items()}
    flat = World(tree.tables, settings=FLAT)
    fill(flat, 60)
    flat.sync()
    assert flat.tables.tables == loaded(60, settings=FLAT).tables.tables
    back = World(tree.tables, settings=PLAIN)
    fill(back, 60)
    back.sync()
    assert tree.tables.tables["nat"] == before


def test_one_endpoint_that_changes_rewrites_its_services_chains_only() -> None:
    world = loaded(60)
    world.tables.log.clear()
    world.put(web("s3", 3), slice_of("s3", endpoint("10.1.3.1"), endpoint("10.1.3.9")))
    report = world.sync()
    (text,) = world.tables.log
    assert (report.added, report.changed, report.removed) == (1, 1, 1)
    assert {line[1:9] for line in text.splitlines() if line.startswith(":")} == {"KUBE-SVC", "KUBE-SEP"}
    assert text.count(":") - text.count("10.1.3.") < 20
    assert "*filter" not in text


def test_a_service_that_comes_rewrites_one_leaf() -> None:
    world = loaded(40)
    world.tables.log.clear()
    world.put(service("new", "10.96.0.61"), slice_of("new", endpoint("10.1.77.1")))
    world.sync()
    (text,) = world.tables.log
    declared = [line.split(" ")[0] for line in text.splitlines() if line.startswith(":")]
    assert len([name for name in declared if name.startswith(":KUBE-SVCS-")]) == 1
    assert len([name for name in declared if name.startswith(":KUBE-CIPS-")]) == 1
    assert len(declared) == 4


def test_kube_proxys_order_of_services_is_as_good_as_ours() -> None:
    old = loaded(9, settings=FLAT)
    rules = old.chain("KUBE-SERVICES")
    rules[:-1] = reversed(rules[:-1])
    new = World(old.tables, settings=FLAT)
    fill(new, 9)
    report = new.sync()
    assert (report.added, report.changed, report.removed) == (0, 0, 0)


def test_a_chain_that_others_jump_to_is_emptied_and_stays() -> None:
    world = loaded(3)
    chain = next(chain for chain in world.tables.tables["nat"] if chain.startswith("KUBE-SVC-"))
    world.tables.tables["nat"]["OUTPUT"].append(f"-d 192.0.2.7/32 -j {chain}")
    world.reconciler.distrust()
    world.sync()
    for number in (1, 2, 3):
        world.drop(named(f"s{number}"))
    world.sync()
    assert world.chain(chain) == []
    world.backend.delete()
    assert [name for name in world.tables.tables["nat"] if name.startswith("KUBE-")] == [chain]


def test_after_a_refusal_in_the_second_table_the_first_is_looked_at_again() -> None:
    world = loaded(3)
    world.tables.refuse = "DNAT --to-destination 10.1.9.1"
    world.put(
        web("s9", 9, load_balancer_ips=ips("1.2.3.9"), source_ranges=(cidr("203.0.113.0/24"),)),
        slice_of("s9", endpoint("10.1.9.1")),
    )
    assert world.sync().repaired == []
    assert [name.name for name in world.reconciler.isolated] == ["s9"]
    assert "1.2.3.9" not in world.tables.save("filter")


class OwnedTables(FakeTables):
    """Tables of which another program owns `mangle` at first: it refuses the next `refusals` changes of it."""

    refusals = 0

    def restore(self, text: str) -> None:
        before, rest = text.split("*mangle") if "*mangle" in text else (text, "")
        if rest and self.refusals:
            self.refusals -= 1
            super().restore(before)
            raise CommitError("the owner of mangle refuses", transaction=text)
        super().restore(text)


@pytest.mark.parametrize("refusals", [1, 2, 3, 4, 5])
def test_a_table_that_others_give_free_between_two_tries_costs_no_rule(refusals: int) -> None:
    tables = OwnedTables()
    tables.refusals = refusals
    world = World(tables, variant=Variant.NFT)
    fill(world, 3)
    while tables.refusals:
        with contextlib.suppress(CommitError):
            world.sync()
    world.sync()
    assert tables.tables == loaded(3).tables.tables
    assert not world.backend.changed()


def test_a_refusal_before_any_table_changed_costs_no_look() -> None:
    world = loaded(3, variant=Variant.NFT)
    world.tables.refuse = "DNAT --to-destination 10.1.9.1"
    world.put(web("s2", 2, affinity_seconds=60), slice_of("s2", endpoint("10.1.9.1")))
    assert world.sync().observed is None
    assert [name.name for name in world.reconciler.isolated] == ["s2"]


def test_a_removal_that_only_the_first_table_accepted_is_no_change_by_others() -> None:
    world = loaded(3)
    world.tables.refuse = "DNAT --to-destination 10.1.9.1"
    world.put(web("s1"), slice_of("s1", endpoint("10.1.9.1")))
    assert world.sync().repaired == []
    assert "1.2.3.1" in world.tables.save("filter")


def test_large_differences_are_written_in_batches_and_dispatched_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vipwire.modes.iptables.kernel.BATCH", {Variant.NFT: 40, Variant.LEGACY: 0})
    world = loaded(60, variant=Variant.NFT)
    log = world.tables.log
    assert len(log) > 5
    assert [at for at, text in enumerate(log) if "-I PREROUTING" in text] == [len(log) - 1]
    assert world.tables.tables == loaded(60).tables.tables
    assert not world.backend.changed()
    log.clear()
    for number in range(1, 61):
        world.drop(named(f"s{number}"))
    world.sync()
    assert len(log) > 3
    empty = World()
    empty.sync()
    assert world.tables.tables == empty.tables.tables


@pytest.mark.parametrize("text", ["garbage", "*nat\n-A NOWHERE -j DROP\nCOMMIT"])
def test_a_listing_that_is_none_says_so(text: str) -> None:
    class Broken(FakeTool):
        def save(self, table: str) -> str:
            return f"# {table}\n{text}\n"

    tables = FakeTables()
    backend = IptablesBackend(Broken(tables), PLAIN, FakeWitness(tables))
    with pytest.raises((DecodeError, CommitError), match="iptables-save"):
        backend.observe()


def test_an_entry_is_named_by_its_frontend() -> None:
    world = loaded(1)
    keys = [key for key in world.backend.observe() if key.kind == ENTRY and key.chain == "KUBE-SERVICES"]
    assert {world.backend.describe(key) for key in keys} == {
        "iptables nat entry 10.96.0.1:80/tcp of KUBE-SERVICES",
        "iptables nat entry 1.2.3.1:80/tcp of KUBE-SERVICES",
    }
