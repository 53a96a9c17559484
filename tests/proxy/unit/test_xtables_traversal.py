"""One reading of iptables' rules for every mode that writes them: what they do to a packet, or that it is unknown."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

import pytest
from tests.fakes.values import ip

from vipwire.errors import DecodeError
from vipwire.model.net import Address, Protocol
from vipwire.modes.xtables.match import (
    ListedRule,
    Lookup,
    PacketHeader,
    Surroundings,
    compare_rules,
    evaluate_conditions,
)
from vipwire.modes.xtables.rule_text import Condition, ParsedRule, parse_rule
from vipwire.modes.xtables.traversal import Traversal
from vipwire.plan.resolve import Packet
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict

NODE = ip("192.168.0.2")


def packet(**more: object) -> Packet:
    asked = Packet(ip("203.0.113.9"), ip("10.96.0.1"), Protocol.TCP, 80, "eth0")
    return asked._replace(**more)  # type: ignore[arg-type]


class Around(Surroundings):
    """Chains by name, one set, and chance that always agrees."""

    def __init__(self, chains: Mapping[str, Iterable[str]] | None = None) -> None:
        self._chains = chains or {}
        self.drawn: list[Fraction] = []

    def owns_address(self, address: Address) -> bool:
        return address == NODE

    def look_up(self, name: str, fields: str, header: PacketHeader) -> Lookup | None:
        return Lookup(found=header.port == 80, mark=7) if (name, fields) == ("KNOWN", "dst,dst") else None

    def draw(self, chance: Fraction, *, in_turn: bool) -> bool:
        assert in_turn
        self.drawn.append(chance)
        return True

    def recall(self, name: str, seconds: int) -> bool:
        return (name, seconds) == ("LIST", 60)

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> list[ListedRule] | None:
        del table, header
        if chain not in self._chains:
            return None
        return [ListedRule(text, ObjectState.PLANNED) for text in self._chains[chain]]


def judged(text: str, asked: Packet | None = None) -> bool | None:
    rule = parse_rule(text)
    holds = evaluate_conditions(rule.conditions, PacketHeader.of(asked or packet()), Around()).holds
    return None if holds and rule.unknown else holds


def test_a_rule_as_data() -> None:
    text = '-p tcp -m comment --comment "two words" -m set ! --match-set A dst,src -m mark --mark 0x1/0x3'
    tests = (
        Condition("-p", ("tcp",)),
        Condition("--match-set", ("A", "dst,src"), wanted=False),
        Condition("--mark", ("0x1/0x3",)),
    )
    assert parse_rule(f"{text} -j SET --map-set B dst") == ParsedRule(tests, "SET", ("--map-set", "B", "dst"))
    assert parse_rule("-j SET --map-set B dst").find_option("--map-set") == "B"
    assert parse_rule("-g CHAIN").goto
    assert parse_rule("-p tcp").target == "", "it only counts"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("-s 203.0.113.0/24 -d 10.96.0.1/32 -i eth+ -p tcp -m tcp --dport 80", True),
        ("-s 203.0.113.9 ! -d 10.96.0.2/32", True),
        ("! -s 203.0.113.0/24", False),
        ("-d 0.0.0.1/0.0.0.3", True),
        ("-d 0.0.0.2/0.0.0.3", False),
        ("-s ::1/128", False),
        ("-p 6", True),
        ("-p icmp", False),
        ("-m tcp --dport 79:90", True),
        ("-m tcp --dport 81:90", False),
        ("-m tcp --dport :80", True),
        ("-m multiport --dports 22,79:81", True),
        ("-m conntrack --ctorigdstport 79:90 -m conntrack --ctorigdst 10.96.0.0/16", True),
        ("-m conntrack --ctstate NEW,RELATED", True),
        ("-m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT", True),
        ("-m mark --mark 0x0/0x4000", True),
        ("-m addrtype --dst-type LOCAL", False),
        ("-m addrtype --src-type LOCAL", False),
        ("-m tcp --tcp-flags FIN,SYN,RST,ACK SYN", True),
        ("-m tcp --tcp-flags ACK ACK", False),
        ("-m set --match-set KNOWN dst,dst", True),
        ("-m recent --rcheck --seconds 60 --reap --name LIST --mask 255.255.255.255 --rsource", True),
        ("-m nfacct --nfacct-name count", True),
    ],
)
def test_what_is_understood_is_judged(text: str, holds: bool) -> None:  # noqa: FBT001
    assert judged(f"{text} -j ACCEPT") is holds


@pytest.mark.parametrize(
    "text",
    [
        "-m time --timestart 10:00",
        "-m connmark --mark 0x0/0x1",
        "-m policy --mode tunnel",
        "-o eth0",
        "-m tcp --dport http",
        "-m tcp --dport 90:79",
        "-m tcp --sport 80",
        "-s host.example",
        "-d 10.0.0.0/33",
        "-m mark --mark x",
        "-m conntrack --ctstate WEIRD",
        "-m addrtype --dst-type MULTICAST",
        "-m set --match-set OTHER dst,dst",
        "-m statistic --mode random",
        "-m statistic --mode nth --every 0 --packet 0",
        "-m recent --rcheck --seconds 60 --name LIST --mask 255.255.255.0 --rsource",
        '-m bpf --bytecode "1,6 0 0 1"',
        "!",
        "-m",
        "-j",
    ],
)
def test_what_is_not_understood_cannot_be_told(text: str) -> None:
    assert judged(f"-d 10.96.0.1/32 {text}") is None
    assert judged(f"-d 10.96.0.2/32 {text}") is False, "it is not met, whatever the rest says"


def test_a_rule_whose_quotes_do_not_end_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        parse_rule('-m comment --comment "')


def passed(chains: Mapping[str, Iterable[str]], asked: Packet | None = None) -> tuple[Verdict | None, Traversal]:
    around = Around(chains)
    way = Traversal(around, PacketHeader.of(asked or packet()))
    return way.run_hook("nat", "PREROUTING"), way


@pytest.mark.parametrize(
    ("rules", "verdict", "uncertain"),
    [
        (["-j DROP", "-j ACCEPT"], "DROP", False),
        (["-m tcp --dport 79:90 -j REJECT --reject-with tcp-reset"], "REJECT", False),
        (["-m weird --word -j DROP", "-j ACCEPT"], "ACCEPT", True),
        (["-j TPROXY --on-port 1"], "", True),
        (["-j NOWHERE"], "", True),
        (["-j A", "-j DROP"], "DROP", False),
        (["-g A", "-j DROP"], "", False),
        (["-j LOOP", "-j DROP"], "DROP", True),
        (["-j MANY"], "", True),
        (["-j DNAT --to-destination 10.0.0.1:http"], "", True),
        (["-j MARK --set-mark 1"], "", True),
        (["-j SET --map-set OTHER dst,dst --map-mark"], "", True),
        (["-j SET --add-set KNOWN src"], "", True),
        ([], "", False),
    ],
)
def test_chains_are_passed_in_order(rules: list[str], verdict: str, *, uncertain: bool) -> None:
    many = {f"MANY{depth}": [f"-j MANY{depth + 1}"] * 9 for depth in range(12)}
    chains = {"PREROUTING": rules, "A": ["-j RETURN", "-j DROP"], "LOOP": ["-j LOOP"], "MANY": ["-j MANY0"], **many}
    found, way = passed({**chains, "MANY12": []})
    assert (found.name if found else "", way.uncertain) == (verdict, uncertain)


def test_targets_change_the_packet() -> None:
    _, way = passed(
        {"PREROUTING": ["-j MARK --set-xmark 0x4000/0x4000", "-j M"], "M": ["-j DNAT --to-destination [::1]:9"]}
    )
    assert (way.header.mark, way.header.destination, way.header.port) == (0x4000, ip("::1"), 9)
    assert way.header.translated
    assert [effect for step in way.steps for effect in step.effects] == [
        Effect(Verdict.MARK, "0x4000"),
        Effect(Verdict.JUMP, "M"),
        Effect(Verdict.DNAT, "[::1]:9"),
    ]
    found, way = passed({"PREROUTING": ["-p tcp -j REDIRECT --to-ports 99"]})
    assert (found, way.header.port) == (Verdict.REDIRECT, 99)
    found, way = passed(
        {"PREROUTING": ["-j SET --map-set KNOWN dst,dst --map-mark", "-m mark --mark 0x7 -j MASQUERADE"]}
    )
    assert (found, way.masqueraded) == (Verdict.MASQUERADE, True)


def test_nothing_is_drawn_behind_what_cannot_be_told() -> None:
    around = Around()
    unknown = Condition("--dst-type", ("MULTICAST",))
    chance = Condition("--mode", ("nth",), details=(("--every", "4"), ("--packet", "0")))
    assert evaluate_conditions((unknown, chance), PacketHeader.of(packet()), around).holds is None
    assert around.drawn == []
    assert evaluate_conditions((chance,), PacketHeader.of(packet()), around).holds is True
    assert around.drawn == [Fraction(1, 4)]


def test_a_rule_that_is_missing_is_named_where_the_packet_would_meet_it() -> None:
    class Lacking(Around):
        def list_rules(self, table: str, chain: str, header: PacketHeader) -> list[ListedRule] | None:
            del table, chain, header
            texts = ("-d 10.96.0.1/32 -j DROP", "-d 10.96.0.2/32 -j DROP", "")
            return [ListedRule(text, ObjectState.MISSING) for text in texts]

    around = Lacking()
    way = Traversal(around, PacketHeader.of(packet()))
    assert way.run_hook("filter", "INPUT") is None
    assert way.steps == [
        Step("filter INPUT", "", "-d 10.96.0.1/32 -j DROP", ObjectState.MISSING),
        Step("filter INPUT", "", "", ObjectState.MISSING),
    ]
    assert [step.effect for step in way.steps] == ["is missing here", "does not exist"]


@pytest.mark.parametrize(
    ("seen", "states"), [("AB", "PP"), ("XAB", "DPP"), ("BA", "PD"), ("A", "PM"), ("", "MM"), (None, "M")]
)
def test_rules_are_compared_in_their_order(seen: str | None, states: str) -> None:
    assert "".join(rule.state.name[0] for rule in compare_rules(seen, "AB")) == states
