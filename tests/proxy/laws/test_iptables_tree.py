"""Laws of the dispatch tree, for any set of frontends of both families.

A packet meets exactly its frontend's rules; the tree depends on the set alone, not on the way to it; and what a
change says is to be written turns the old chains into the new ones.
"""

import ipaddress
import re
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.net import Address, Family, Protocol, format_address
from vipwire.modes.iptables.rules.frontend_code import Zone, encode_frontend
from vipwire.modes.iptables.rules.names import LARGEST_NAME, Rules
from vipwire.modes.iptables.rules.tree import DEEPEST, LEAF, Dispatch, Shape
from vipwire.plan.plan import FrontendKey

ROOT, PREFIX = "KUBE-EXTERNAL-SERVICES", "KUBE-EXTS-"

protocols = st.sampled_from(Protocol)
ports = st.one_of(st.integers(1, 65535), st.integers(30000, 30031))


def addresses(family: Family) -> st.SearchStrategy[Address]:
    size = family.bits // 8
    near = st.integers(0, 200).map(lambda number: Address((0x0A << (family.bits - 8) | number).to_bytes(size)))
    return st.one_of(near, st.binary(min_size=size, max_size=size).map(Address))


def frontends(family: Family) -> st.SearchStrategy[list[FrontendKey]]:
    key = st.builds(FrontendKey, st.one_of(st.none(), addresses(family)), protocols, ports)
    crowd = st.integers(0, 400).map(lambda count: _crowd(family, count))
    return st.one_of(st.lists(key, max_size=60, unique=True), crowd)


def _crowd(family: Family, count: int) -> list[FrontendKey]:
    base = int(ipaddress.ip_address("10.96.0.0" if family is Family.IPV4 else "fd00::"))
    size = family.bits // 8
    return [FrontendKey(Address((base + at * 7).to_bytes(size)), Protocol.TCP, 80) for at in range(count)] + [
        FrontendKey(None, Protocol.UDP, 30000 + at) for at in range(count // 3)
    ]


cases = st.sampled_from(Family).flatmap(lambda family: st.tuples(st.just(family), frontends(family)))


def dispatch(family: Family, deepest: int = DEEPEST) -> Dispatch:
    return Dispatch(Shape(Zone(family), ROOT, PREFIX, deepest))


def entry(key: FrontendKey) -> Rules:
    where = "-m addrtype --dst-type LOCAL" if key.address is None else f"-d {format_address(key.address)}"
    return (f"{where} {key.protocol.label} {key.port} -j HERE",)


def entries(family: Family, keys: list[FrontendKey]) -> dict[int, Rules]:
    return {encode_frontend(family, key): entry(key) for key in keys}


def write(have: Mapping[str, Rules], chains: Mapping[str, Rules | None]) -> dict[str, Rules]:
    """Do to some chains what a draft says."""
    result = {**have, **{name: rules for name, rules in chains.items() if rules is not None}}
    return {name: rules for name, rules in result.items() if name not in chains or chains[name] is not None}


def found(chains: Mapping[str, Rules], key: FrontendKey, chain: str = ROOT) -> tuple[list[str], int]:
    """Follow a packet for a frontend: what it meets in leaves, and how many rules it passes."""
    hits: list[str] = []
    passed = 0
    for rule in chains[chain]:
        passed += 1
        head, target = rule.rsplit(" ", 1)
        if target not in chains:
            hits += [rule] if rule == entry(key)[0] else []
        elif _matches(head, key):
            below, more = found(chains, key, target)
            hits += below
            passed += more
            if head.endswith("-g"):
                break
    return hits, passed


def _matches(head: str, key: FrontendKey) -> bool:
    """Tell whether a packet for a frontend matches a branch; a node port's is for a local address."""
    if "addrtype" in head:
        return key.address is None
    if masked := re.match(r"-d (\S+)/(\S+) ", head):
        if key.address is None:
            return False
        value, mask = (int(ipaddress.ip_address(part)) for part in masked.groups())
        return int.from_bytes(key.address) & mask == value
    if ranged := re.match(r"-p (\w+) -m \w+ --dport (\d+):(\d+) ", head):
        return key.protocol.label == ranged[1] and int(ranged[2]) <= key.port <= int(ranged[3])
    if named := re.match(r"-p (\w+) ", head):
        return key.protocol.label == named[1]
    return head in ("-j", "-g")


@given(cases)
def test_a_packet_finds_its_frontends_rules_and_no_others(case: tuple[Family, list[FrontendKey]]) -> None:
    family, keys = case
    tree = dispatch(family)
    tree.load(entries(family, keys))
    chains = tree.chains()
    for key in keys:
        assert found(chains, key)[0] == list(entry(key))


@given(cases, st.data())
def test_any_way_to_a_set_leads_to_the_same_chains(
    case: tuple[Family, list[FrontendKey]], data: st.DataObject
) -> None:
    family, keys = case
    tree, whole = dispatch(family), entries(family, keys)
    start = (
        {code: whole[code] for code in data.draw(st.lists(st.sampled_from(sorted(whole)), unique=True))}
        if whole
        else {}
    )
    tree.load(start)
    kernel = dict(tree.chains())
    for code in data.draw(st.permutations(sorted(whole))):
        for wanted in ((None,) if code in start else ()) + (whole[code],):
            draft = tree.draft({code: wanted}, everything=False)
            kernel = write(kernel, draft.chains)
            tree.adopt(draft)
    fresh = dispatch(family)
    fresh.load(whole)
    assert kernel == tree.chains() == fresh.chains()
    assert tree.branches == fresh.branches == len(kernel) - 1


@given(
    st.sampled_from(Family).flatmap(
        lambda family: st.tuples(st.just(family), st.lists(addresses(family), max_size=2))
    ),
    st.sets(ports, min_size=20, max_size=200),
    st.integers(1, DEEPEST),
)
def test_a_frontend_unlike_all_others_moves_them_as_they_are(
    case: tuple[Family, list[Address]], crowd: set[int], deepest: int
) -> None:
    """Many ports of one address have the same digits up to the port's: a chain above theirs comes, and goes."""
    family, strangers = case
    home = Address((0x0A << (family.bits - 8)).to_bytes(family.bits // 8))
    strays = [FrontendKey(where, Protocol.UDP, 53) for where in (None, *dict.fromkeys(strangers))]
    tree, fresh = dispatch(family, deepest), dispatch(family, deepest)
    whole = entries(family, [FrontendKey(home, Protocol.TCP, number) for number in sorted(crowd)])
    tree.load(whole)
    kernel = dict(tree.chains())
    coming = entries(family, strays)
    for changed in (*coming.items(), *dict.fromkeys(reversed(coming)).items()):
        height = tree.tree.height
        draft = tree.draft(dict([changed]), everything=False)
        kernel = write(kernel, draft.chains)
        tree.adopt(draft)
        fresh.load(tree.entries)
        assert kernel == tree.chains() == fresh.chains()
        if height + 1 < deepest:
            assert len(draft.chains) <= 3, "the chains with the crowd in them are left alone"
    assert tree.entries == whole


@given(cases)
def test_taking_everything_away_leaves_the_root_alone(case: tuple[Family, list[FrontendKey]]) -> None:
    family, keys = case
    tree = dispatch(family)
    tree.load(entries(family, keys))
    kernel = dict(tree.chains())
    for code in list(tree.entries):
        draft = tree.draft({code: None}, everything=False)
        kernel = write(kernel, draft.chains)
        tree.adopt(draft)
    assert kernel == {ROOT: ()}


@given(cases)
def test_names_fit_and_chains_are_short_and_shallow(case: tuple[Family, list[FrontendKey]]) -> None:
    family, keys = case
    tree = dispatch(family)
    tree.load(entries(family, keys))
    chains = tree.chains()
    assert all(len(name) <= LARGEST_NAME for name in chains)
    assert _depth(chains, ROOT) <= DEEPEST
    if _depth(chains, ROOT) < DEEPEST:
        assert all(len(rules) <= LEAF for rules in chains.values())


def _depth(chains: Mapping[str, Rules], chain: str) -> int:
    below = [rule.rsplit(" ", 1)[1] for rule in chains[chain]]
    return max((1 + _depth(chains, name) for name in below if name in chains), default=0)


@given(cases)
def test_the_flat_form_has_one_chain(case: tuple[Family, list[FrontendKey]]) -> None:
    family, keys = case
    flat = dispatch(family, deepest=0)
    flat.load(entries(family, keys))
    assert flat.chains().keys() == {ROOT}


def test_the_rules_that_a_packet_passes_grow_with_the_logarithm() -> None:
    means: dict[int, float] = {}
    for count in (100, 1_000, 10_000):
        keys = _crowd(Family.IPV4, count)[:count]
        tree = dispatch(Family.IPV4)
        tree.load(entries(Family.IPV4, keys))
        chains = tree.chains()
        sample = keys[:: max(1, count // 100)]
        means[count] = sum(_passed(chains, key) for key in sample) / len(sample)
    assert means[1_000] - means[100] < 8
    assert means[10_000] - means[1_000] < 8


def _passed(chains: Mapping[str, Rules], key: FrontendKey) -> int:
    """Count the rules up to the frontend's own, where a connection leaves the tree."""
    passed, chain = 0, ROOT
    while True:
        for rule in chains[chain]:
            passed += 1
            head, target = rule.rsplit(" ", 1)
            if rule in entry(key):
                return passed
            if target in chains and _matches(head, key):
                chain = target
                break
        else:
            raise AssertionError(key)
