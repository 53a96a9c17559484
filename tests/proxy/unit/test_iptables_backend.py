"""The backend on tables in memory: it finds what it wrote, takes over what kube-proxy left, touches nothing else."""

import pytest
from tests.fakes.iptables import FakeTables, FakeTool, FakeWitness
from tests.fakes.iptables_world import PLAIN, World
from tests.fakes.values import cidr, endpoint, ips, named, node_plan, port, service, slice_of

from vipwire.errors import CommitError, DecodeError
from vipwire.model.net import Family
from vipwire.model.service import Service, TrafficPolicy
from vipwire.modes.iptables.kernel import IptablesBackend
from vipwire.modes.iptables.rules.names import CHAIN, ENTRY, JUMP, NAT, ROOT, Key
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.iptables.rules.skeleton import FIREWALL_RULE
from vipwire.modes.xtables.variant import Variant
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import PodPrefixes

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


@pytest.mark.parametrize("settings", [PLAIN, FLAT, RuleSettings()], ids=["tree", "flat", "counters"])
@pytest.mark.parametrize("count", [0, 3, 60])
def test_a_new_process_finds_what_the_old_one_left_and_writes_nothing(count: int, settings: RuleSettings) -> None:
    old = loaded(count, settings=settings)
    new = World(old.tables, settings=settings)
    fill(new, count)
    written = len(old.tables.log)
    report = new.sync()
    assert (report.added, report.changed, report.removed) == (0, 0, 0)
    assert len(old.tables.log) == written


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


@pytest.mark.parametrize("settings", [PLAIN, FLAT], ids=["tree", "flat"])
def test_what_was_written_step_by_step_is_what_one_step_writes(settings: RuleSettings) -> None:
    world = World(settings=settings)
    for number in range(1, 61):
        world.put(web(f"s{number}", number), slice_of(f"s{number}", endpoint(f"10.1.{number}.1")))
        world.sync()
    for number in range(1, 31):
        world.drop(named(f"s{number}"))
        world.sync()
    whole = World(settings=settings)
    for number in range(31, 61):
        whole.put(web(f"s{number}", number), slice_of(f"s{number}", endpoint(f"10.1.{number}.1")))
    whole.sync()
    assert world.tables.tables == whole.tables.tables


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


def test_the_services_chains_of_a_running_kube_proxy_are_taken_over_untouched() -> None:
    world = World(_kube_proxys_tables())
    world.put(web("s1", 1), slice_of("s1", endpoint("10.1.1.1"), endpoint("10.1.1.2")))
    report = world.sync()
    written = "".join(world.tables.log).splitlines()
    assert not [line for line in written if line.startswith((":KUBE-SVC-", ":KUBE-SEP-", ":KUBE-EXT-"))]
    assert (report.added, report.removed) == (0, 0)


def _kube_proxys_tables() -> FakeTables:
    """Make the tables that a kube-proxy leaves: the flat form."""
    before = World(settings=FLAT)
    before.put(web("s1", 1), slice_of("s1", endpoint("10.1.1.1"), endpoint("10.1.1.2")))
    before.sync()
    before.tables.log.clear()
    return before.tables


def test_kube_proxys_order_of_services_is_as_good_as_ours() -> None:
    old = loaded(9, settings=FLAT)
    rules = old.chain("KUBE-SERVICES")
    rules[:-1] = reversed(rules[:-1])
    new = World(old.tables, settings=FLAT)
    fill(new, 9)
    report = new.sync()
    assert (report.added, report.changed, report.removed) == (0, 0, 0)


@pytest.mark.parametrize("settings", [PLAIN, FLAT], ids=["tree", "flat"])
@pytest.mark.parametrize(
    "harm",
    [
        "flush nat",
        "flush filter",
        "foreign rule in KUBE-SERVICES",
        "foreign rule in a leaf",
        "last rule first",
        "rule twice",
        "rule gone",
        "jump gone",
        "jump twice",
        "stray chain",
        "stray tree chain",
        "canary gone",
    ],
)
def test_damage_is_found_and_repaired(harm: str, settings: RuleSettings) -> None:
    world = loaded(60, settings=settings)
    good = {table: dict(chains) for table, chains in world.tables.tables.items()}
    good = {table: {chain: list(rules) for chain, rules in chains.items()} for table, chains in good.items()}
    _harm(world.tables, harm)
    world.tables.generation += 1
    assert world.backend.changed()
    assert world.reconciler.verify()
    report = world.sync()
    assert report.repaired
    repaired = world.tables.tables
    assert {table: chains.keys() for table, chains in repaired.items()} == {t: c.keys() for t, c in good.items()}
    for table, chains in good.items():
        for chain, rules in chains.items():
            assert sorted(repaired[table][chain]) == sorted(rules), chain
    again = World(world.tables, settings=settings)
    fill(again, 60)
    assert again.sync().size == 0


def _harm(tables: FakeTables, harm: str) -> None:  # noqa: C901 - one case each
    nat, filters = tables.tables["nat"], tables.tables["filter"]
    leaf = next(
        (chain for chain in nat if chain.startswith("KUBE-SVCS-") and "cluster IP" in "".join(nat[chain])),
        "KUBE-SERVICES",
    )
    match harm:
        case "flush nat":
            tables.tables["nat"] = FakeTables().tables["nat"]
        case "flush filter":
            tables.tables["filter"] = FakeTables().tables["filter"]
        case "foreign rule in KUBE-SERVICES":
            nat["KUBE-SERVICES"].insert(0, "-d 10.96.0.1/32 -j RETURN")
        case "foreign rule in a leaf":
            nat[leaf].insert(0, "-p tcp -j RETURN")
        case "last rule first":
            nat["KUBE-SERVICES"].insert(0, nat["KUBE-SERVICES"].pop())
        case "rule twice":
            nat[leaf].insert(0, nat[leaf][0])
        case "rule gone":
            del nat[leaf][0]
        case "jump gone":
            filters["FORWARD"].pop()
        case "jump twice":
            filters["FORWARD"].append(filters["FORWARD"][0])
        case "stray chain":
            nat["KUBE-SVC-AAAAAAAAAAAAAAAA"] = ["-j RETURN"]
        case "stray tree chain":
            nat["KUBE-SVCS-2-77"] = ["-j RETURN"]
        case "canary gone":
            del tables.tables["mangle"]["KUBE-PROXY-CANARY"]


def test_nothing_of_others_is_touched() -> None:
    tables = FakeTables()
    tables.tables["filter"]["FORWARD"] = ["-s 192.0.2.1/32 -j DROP"]
    tables.tables["nat"]["CNI-1"] = ["-j MASQUERADE"]
    tables.tables["nat"]["POSTROUTING"] = ["-s 10.1.0.0/16 -j CNI-1"]
    tables.tables["filter"]["KUBE-FIREWALL"] = ["-m mark --mark 0x8000/0x8000 -j DROP", FIREWALL_RULE]
    tables.tables["filter"]["INPUT"] = ["-j KUBE-FIREWALL"]
    tables.tables["filter"]["OUTPUT"] = ["-j KUBE-FIREWALL"]
    tables.tables["mangle"]["KUBE-KUBELET-CANARY"] = []
    before = {
        table: {chain: list(rules) for chain, rules in chains.items()} for table, chains in tables.tables.items()
    }
    world = World(tables)
    fill(world, 9)
    world.sync()
    world.drop(named("s1"))
    world.sync()
    for table, chains in before.items():
        for chain, rules in chains.items():
            now = tables.tables[table][chain]
            assert [rule for rule in now if rule in rules] == rules
            assert [rule for rule in now if "kubernetes" not in rule] == rules
    assert world.backend.delete()
    assert tables.tables == before


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


def test_cleaning_up_removes_all_and_then_finds_nothing() -> None:
    world = loaded(60)
    assert world.backend.delete()
    assert world.tables.tables == FakeTables().tables
    assert not world.backend.delete()


def test_a_service_that_is_refused_is_left_alone_with_what_it_had() -> None:
    world = loaded(3)
    world.tables.refuse = "10.1.3.9"
    world.put(web("s3", 3), slice_of("s3", endpoint("10.1.3.9")))
    world.put(web("s2", 2), slice_of("s2", endpoint("10.1.2.9")))
    world.sync()
    assert [name.name for name in world.reconciler.isolated] == ["s3"]
    nat = world.tables.save("nat")
    assert "10.1.2.9" in nat
    assert "10.1.3.1:8080" in nat
    world.tables.refuse = ""
    world.reconciler.retry()
    world.sync()
    assert not world.reconciler.isolated
    assert "10.1.3.9:8080" in world.tables.save("nat")


def test_after_a_refusal_in_the_second_table_the_first_is_looked_at_again() -> None:
    world = loaded(3)
    world.tables.refuse = "DNAT --to-destination 10.1.9.1"
    world.put(
        web("s9", 9, load_balancer_ips=ips("1.2.3.9"), source_ranges=(cidr("203.0.113.0/24"),)),
        slice_of("s9", endpoint("10.1.9.1")),
    )
    world.sync()
    assert [name.name for name in world.reconciler.isolated] == ["s9"]
    assert "1.2.3.9" not in world.tables.save("filter")


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


@pytest.mark.parametrize("variant", list(Variant))
def test_chains_are_declared_from_the_last_to_the_first_before_any_rule(variant: Variant) -> None:
    (text,) = loaded(20, variant=variant).tables.log
    for part in text.split("COMMIT\n"):
        lines = [line for line in part.splitlines() if not line.startswith("*")]
        names = [line for line in lines if line.startswith(":")]
        assert names == sorted(names, reverse=True), "the legacy tool inserts them fastest so"
        assert lines[: len(names)] == names


def test_a_move_of_the_node_renders_every_service_anew() -> None:
    world = loaded(3)
    other = World(world.tables, node=node_plan(pod_traffic=PodPrefixes((cidr("10.64.0.0/10"),))))
    fill(other, 3)
    report = other.sync()
    assert report.changed
    assert "! -s 10.0.0.0/8" not in world.tables.save("nat")


def test_rules_are_counted_by_table() -> None:
    world = loaded(3)
    assert world.backend.written["nat"] == world.count("nat")
    assert world.backend.rules["nat"] == world.count("nat")
    held = sum(len(rules) for chain, rules in world.tables.tables["filter"].items() if chain.startswith("KUBE-"))
    assert world.backend.rules["filter"] == held - 1, "KUBE-FIREWALL is not ours"
    world.put(web("s3", 3), slice_of("s3", endpoint("10.1.3.1")))
    world.sync()
    assert world.backend.written["nat"] < 10
    assert world.backend.rules["nat"] == world.count("nat")


@pytest.mark.parametrize("text", ["garbage", "*nat\n-A NOWHERE -j DROP\nCOMMIT"])
def test_a_listing_that_is_none_says_so(text: str) -> None:
    class Broken(FakeTool):
        def save(self, table: str) -> str:
            return f"# {table}\n{text}\n"

    tables = FakeTables()
    backend = IptablesBackend(Broken(tables), PLAIN, FakeWitness(tables))
    with pytest.raises((DecodeError, CommitError), match="iptables-save"):
        backend.observe()


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (Key(CHAIN, NAT, "KUBE-SVC-A"), "iptables nat chain KUBE-SVC-A"),
        (Key(ROOT, NAT, "KUBE-SERVICES"), "iptables nat dispatch chain KUBE-SERVICES"),
        (Key(JUMP, NAT, "OUTPUT", "-j KUBE-SERVICES"), "iptables nat rule OUTPUT -j KUBE-SERVICES"),
    ],
)
def test_objects_have_names_for_people(key: Key, words: str) -> None:
    assert World().backend.describe(key) == words


def test_an_entry_is_named_by_its_frontend() -> None:
    world = loaded(1)
    keys = [key for key in world.backend.observe() if key.kind == ENTRY and key.chain == "KUBE-SERVICES"]
    assert {world.backend.describe(key) for key in keys} == {
        "iptables nat entry 10.96.0.1:80/tcp of KUBE-SERVICES",
        "iptables nat entry 1.2.3.1:80/tcp of KUBE-SERVICES",
    }


def test_local_policies_survive_a_restart() -> None:
    world = World(node=node_plan(Family.IPV6))
    subject = service("web", "fd00::1", external_ips=ips("2001:db8::9"), external_policy=TrafficPolicy.LOCAL)
    piece = slice_of("web", endpoint("fd00:10::1"), family=Family.IPV6)
    world.put(subject, piece)
    world.sync()
    again = World(world.tables, node=node_plan(Family.IPV6))
    again.put(subject, piece)
    assert again.sync().size == 0
