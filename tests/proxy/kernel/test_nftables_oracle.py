"""nft itself is the oracle: the same text, loaded by nft and compiled by us, gives the same bytes in the kernel.

Rules that nft 1.0.6 cannot load (it aborts on them) are checked the other way round: it lists what we sent as text.
"""

from collections.abc import Iterator

import pytest
from tests.fakes.own_network import own_network
from tests.proxy.kernel.nft_transactions import commit, dump, nft

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.language import SetSpec, compile_rule, compile_set, is_same_rule, is_same_set

pytestmark = pytest.mark.kernel

KEY = ("ip daddr", "meta l4proto", "th dport")
INTERVAL = frozenset({"interval"})
DYNAMIC = frozenset({"dynamic", "timeout"})

SETS = (
    SetSpec("services", KEY, ("meta priority",)),
    SetSpec("slots", (*KEY, "meta priority"), ("meta priority",)),
    SetSpec("endpoints", (*KEY, "meta priority"), ("ip daddr", "th dport")),
    SetSpec("verdicts", KEY, "verdict"),
    SetSpec("classes", ("meta priority",), "verdict"),
    SetSpec("by-address", ("ip daddr",), "verdict"),
    SetSpec("nodeports", ("meta l4proto", "th dport"), ("meta priority",)),
    SetSpec("affinity", ("ip saddr", *KEY), ("meta priority",), DYNAMIC, timeout_seconds=10800, size=65535),
    SetSpec("seen", ("ip saddr", "meta l4proto", "th dport"), flags=DYNAMIC, timeout_seconds=10, size=100),
    SetSpec("addresses", ("ip daddr",)),
    SetSpec("frontends", KEY),
    SetSpec("allowed", (*KEY, "ip saddr"), flags=INTERVAL),
    SetSpec("hairpin", ("ip saddr", "ip daddr")),
    SetSpec("priorities", ("meta priority", "ip saddr"), flags=INTERVAL),
    SetSpec("marks", ("meta mark",)),
    SetSpec("counted", ("ip daddr",), counter=True),
)
INTERVALS = frozenset(spec.name for spec in SETS if "interval" in spec.flags)

RULES = (
    "ip saddr 10.0.0.1",
    "ip saddr != 10.0.0.1",
    "ip daddr 10.1.0.0/16",
    "ip daddr != 10.1.0.0/16",
    "ip daddr 10.0.0.0/12",
    "ip daddr != 10.0.0.0/12",
    "ip daddr @addresses",
    "ip daddr != @addresses",
    "ip daddr . meta l4proto . th dport @frontends",
    "ip daddr . meta l4proto . th dport . ip saddr != @allowed counter drop",
    "meta priority . ip saddr @priorities",
    "meta mark @marks",
    "ip saddr . ip daddr @hairpin",
    "ip daddr vmap @by-address",
    "ip daddr . meta l4proto . th dport vmap @verdicts",
    "meta priority vmap @classes",
    "meta priority set ip daddr . meta l4proto . th dport map @services meta priority vmap @classes",
    "meta priority set meta l4proto . th dport map @nodeports",
    "meta priority set ip daddr . meta l4proto . th dport . meta priority map @slots",
    "meta priority set numgen random mod 3 offset 65537",
    "meta priority set numgen inc mod 7 offset 2",
    "meta priority set jhash ip saddr mod 3 seed 0x12 offset 1",
    "meta priority set jhash ip saddr . ip daddr . th sport mod 3 seed 0x12 offset 4",
    "meta priority set none",
    "meta mark set meta mark | 0x00004000",
    "meta mark set meta mark ^ 0x00004000",
    "meta mark & 0x00004000 != 0x00000000",
    "meta mark 0x00004000",
    "meta l4proto tcp",
    "meta l4proto != udp",
    "meta l4proto sctp",
    "ct state new",
    "ct state established",
    "ct state invalid drop",
    "ct status dnat",
    "ct direction original",
    "ct direction reply",
    "ct packets > 20",
    "ct packets > 4294967296",
    "fib daddr type local",
    "fib saddr type != local",
    'iifname "lo"',
    'iifname != "cali*"',
    'iifname "abcdefghijklmno"',
    "counter",
    "accept",
    "return",
    "reject",
    "meta l4proto tcp reject with tcp reset",
    "jump target",
    "goto target",
    "masquerade fully-random",
    "dnat ip to ip daddr . meta l4proto . th dport . meta priority map @endpoints",
    "dnat ip to 10.0.0.1",
    "update @seen { ip saddr . meta l4proto . th dport timeout 5s }",
    "delete @seen { ip saddr . meta l4proto . th dport }",
    "ct state new meta l4proto tcp ip daddr @addresses counter drop",
)
ONLY_IPV4 = ("ct original ip daddr 10.0.0.1",)
ABORTS_NFT_IN_IPV6 = (
    "update @affinity { ip saddr . ip daddr . meta l4proto . th dport timeout 30s : meta priority }",
    "delete @affinity { ip saddr . ip daddr . meta l4proto . th dport : meta priority }",
)


def translated(text: str, family: Family) -> str:
    """Turn IPv4 text into the same for IPv6."""
    if family is Family.IPV4:
        return text
    for old, new in (
        ("ip ", "ip6 "),
        ("10.0.0.1", "fd00::1"),
        ("10.1.0.0/16", "fd00::/64"),
        ("10.0.0.0/12", "fd00::/60"),
    ):
        text = text.replace(old, new)
    return text


def declared(spec: SetSpec, family: Family) -> str:
    """Write a declaration as an operator would."""
    value = "" if spec.data is None else " : " + (spec.data if isinstance(spec.data, str) else " . ".join(spec.data))
    lines = [f"typeof {' . '.join(spec.key)}{value}"]
    lines += [f"size {spec.size}"] if spec.size else []
    lines += [f"flags {','.join(sorted(spec.flags))}"] if spec.flags else []
    lines += [f"timeout {spec.timeout_seconds}s"] if spec.timeout_seconds else []
    lines += ["counter"] if spec.counter else []
    kind = "set" if spec.data is None else "map"
    return translated(f"{kind} {spec.name} {{ {'; '.join(lines)}; }}", family)


def rules_of(family: Family) -> list[str]:
    own = (*ONLY_IPV4, *ABORTS_NFT_IN_IPV6) if family is Family.IPV4 else ()
    return [translated(text, family) for text in (*RULES, *own)]


def table(family: Family, name: str = "") -> str:
    return f"{'ip' if family is Family.IPV4 else 'ip6'} {name}".strip()


def translated_spec(spec: SetSpec, family: Family) -> SetSpec:
    data = spec.data if not isinstance(spec.data, tuple) else tuple(translated(part, family) for part in spec.data)
    key = tuple(translated(part, family) for part in spec.key)
    return SetSpec(spec.name, key, data, spec.flags, spec.timeout_seconds, spec.size, counter=spec.counter)


@pytest.fixture
def netlink() -> Iterator[NetlinkSocket]:
    with own_network(), NetlinkSocket(NETLINK_NETFILTER) as opened:
        yield opened


@pytest.fixture(params=Family, ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    found = request.param
    assert isinstance(found, Family)
    return found


def load_by_nft(family: Family, rules: list[str]) -> None:
    sets = "\n".join(declared(spec, family) for spec in SETS)
    body = "\n".join(rules)
    nft(
        "-f",
        "-",
        stdin=f"table {table(family)} theirs {{\n{sets}\nchain target {{\n}}\nchain rules {{\n{body}\n}}\n}}\n",
    )


def load_by_us(netlink: NetlinkSocket, family: Family, rules: list[str]) -> None:
    operations = [encode.new_table(family, "ours")]
    for spec in SETS:
        compiled = compile_set(translated_spec(spec, family), family)
        operations.append(encode.new_set(family, "ours", spec.name, compiled))
    operations += [encode.new_chain(family, "ours", name) for name in ("target", "rules")]
    for text in rules:
        rule = compile_rule(text, family, INTERVALS)
        operations.append(encode.new_rule(family, "ours", "rules", rule))
    commit(netlink, operations)


def dumped_rules(netlink: NetlinkSocket, family: Family, name: str) -> list[decode.ListedNftRule]:
    found = dump(netlink, MessageType.GETRULE, encode.list_objects(family, name), decode.decode_rule)
    return [rule for rule in found if rule.chain == "rules"]


def test_the_kernel_holds_the_same_bytes_for_every_rule(netlink: NetlinkSocket, family: Family) -> None:
    rules = rules_of(family)
    load_by_nft(family, rules)
    load_by_us(netlink, family, rules)
    theirs = dumped_rules(netlink, family, "theirs")
    ours = dumped_rules(netlink, family, "ours")
    assert len(theirs) == len(ours) == len(rules)
    for text, their, our in zip(rules, theirs, ours, strict=True):
        assert our.expressions == their.expressions, text


def test_what_was_sent_is_recognised_in_the_dump_and_nothing_else_is(netlink: NetlinkSocket, family: Family) -> None:
    rules = rules_of(family)
    load_by_us(netlink, family, rules)
    compiled = [compile_rule(text, family, INTERVALS) for text in rules]
    for at, rule in enumerate(dumped_rules(netlink, family, "ours")):
        same = [index for index, mine in enumerate(compiled) if is_same_rule(mine, rule.expressions)]
        assert same == [at], rules[at]


def test_nft_lists_what_we_sent_as_we_wrote_it(netlink: NetlinkSocket, family: Family) -> None:
    rules = rules_of(family)
    load_by_us(netlink, family, rules)
    listing = nft("list", "chain", *table(family, "ours rules").split())
    listed = [line.strip() for line in listing.splitlines() if line.startswith("\t\t")]
    assert listed == [as_listed(text) for text in rules]


def as_listed(text: str) -> str:
    """Write a rule as nft prints it: with counts, and without what the rest of the rule implies."""
    for old, new in (
        ("counter", "counter packets 0 bytes 0"),
        ("meta l4proto tcp reject", "reject"),
        ("dnat ip to 10.0.0.1", "dnat to 10.0.0.1"),
        ("dnat ip6 to fd00::1", "dnat to fd00::1"),
    ):
        text = text.replace(old, new)
    return text


def test_nft_lists_what_it_cannot_load_itself(netlink: NetlinkSocket) -> None:
    rules = [translated(text, Family.IPV6) for text in ABORTS_NFT_IN_IPV6]
    load_by_us(netlink, Family.IPV6, rules)
    listing = nft("list", "chain", "ip6", "ours", "rules")
    assert [line.strip() for line in listing.splitlines() if line.startswith("\t\t")] == rules


def test_sets_are_declared_as_nft_declares_them(netlink: NetlinkSocket, family: Family) -> None:
    load_by_nft(family, [])
    load_by_us(netlink, family, [])
    listings = {}
    for name in ("theirs", "ours"):
        found = dump(netlink, MessageType.GETSET, encode.list_objects(family, name), decode.decode_set_declaration)
        assert [item.name for item in found] == [spec.name for spec in SETS]
        for spec, item in zip(SETS, found, strict=True):
            compiled = compile_set(translated_spec(spec, family), family)
            assert is_same_set(compiled, item.attributes), (name, spec.name)
        listings[name] = nft("list", "table", *table(family, name).split())
    assert listings["ours"] == listings["theirs"].replace("theirs", "ours")


def test_every_set_differs_from_every_other(netlink: NetlinkSocket, family: Family) -> None:
    load_by_us(netlink, family, [])
    found = dump(netlink, MessageType.GETSET, encode.list_objects(family, "ours"), decode.decode_set_declaration)
    for spec in SETS:
        compiled = compile_set(translated_spec(spec, family), family)
        assert [item.name for item in found if is_same_set(compiled, item.attributes)] == [spec.name]


def test_the_whole_survives_list_and_load(netlink: NetlinkSocket, family: Family) -> None:
    load_by_us(netlink, family, rules_of(family))
    before = nft("list", "ruleset")
    nft("flush", "ruleset")
    nft("-f", "-", stdin=before)
    assert nft("list", "ruleset") == before
