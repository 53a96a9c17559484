"""Whatever text stands where iptables-save's should: chains and rules of it, or a DecodeError.

And whatever packet goes through them: a verdict, and whether it is certain.
"""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.values import ip

from vipwire.errors import DecodeError
from vipwire.model.net import Address, Protocol
from vipwire.modes.iptables.rules.choice import run_program
from vipwire.modes.xtables.match import ListedRule, PacketHeader, Surroundings
from vipwire.modes.xtables.save import Chains, find_rule_target, read_tables
from vipwire.modes.xtables.traversal import Traversal
from vipwire.plan.resolve import Packet
from vipwire.reconcile.steps import ObjectState, Verdict

_LINES = st.lists(
    st.one_of(
        st.sampled_from(["*nat", "*filter", ":A - [0:0]", ":B - [0:0]", "COMMIT", "# words", ""]),
        st.builds("-A {} {}".format, st.sampled_from("ABC"), st.text(alphabet='-jgm AB"\\', max_size=30)),
        st.text(alphabet="*:-A \n#x", max_size=8),
    ),
    max_size=20,
).map("\n".join)


@given(_LINES)
def test_every_rule_is_read_or_the_text_is_refused(text: str) -> None:
    try:
        tables = read_tables(text)
    except DecodeError:
        return
    rules = [rule for chains in tables.values() for rules in chains.values() for rule in rules]
    lines = text.splitlines()
    if all(lines.count(line) == 1 for line in lines if line.startswith(("*", ":"))):
        assert len(rules) == sum(line.startswith("-A ") for line in lines)
    assert all(find_rule_target(rule) in rule for rule in rules)


@pytest.mark.parametrize("text", ["-A A -j B", "*nat\n-A A -j B", "*nat\n:A - [0:0]\n*filter\n-A A -j B", ":A", "?"])
def test_a_rule_of_no_chain_and_a_chain_of_no_table_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        read_tables(text)


_WORDS = st.sampled_from(
    [
        "-m",
        "-s",
        "-d",
        "-i",
        "-p",
        "-o",
        "!",
        "-j",
        "-g",
        "--dport",
        "--dports",
        "--ctstate",
        "--ctorigdst",
        "--ctorigdstport",
        "--mark",
        "--set-xmark",
        "--match-set",
        "--src-type",
        "--dst-type",
        "--tcp-flags",
        "--mode",
        "random",
        "nth",
        "--probability",
        "--every",
        "--packet",
        "--rcheck",
        "--set",
        "--name",
        "--mask",
        "--rsource",
        "--seconds",
        "--reap",
        "--bytecode",
        "--comment",
        "--to-destination",
        "--to-ports",
        "--map-set",
        "--map-mark",
        "--random-fully",
        "mark",
        "tcp",
        "udp",
        "conntrack",
        "addrtype",
        "statistic",
        "recent",
        "set",
        "bpf",
        "comment",
        "multiport",
        "A",
        "B",
        "DROP",
        "ACCEPT",
        "RETURN",
        "REJECT",
        "DNAT",
        "REDIRECT",
        "MASQUERADE",
        "SET",
        "MARK",
        "TCPMSS",
        "LOCAL",
        "NEW",
        "0",
        "1",
        "-1",
        "0x1/0x1",
        "80",
        "79:90",
        "90:79",
        "99999999999",
        "10.0.0.0/8",
        "10.0.0.1",
        "10.0.0.1:80",
        "[::1]:80",
        "::",
        "1.2.3.4/255.0.255.0",
        "eth+",
        "dst,dst",
        "src",
        "1,6",
        "é",
        '"',
        "'",
        "\\",
        "#",
        "{port}",
        "0.5",
        "nan",
        "inf",
        "1e999",
    ]
)
_RULES = st.lists(_WORDS, max_size=12).map(" ".join)
_TABLES = st.lists(st.tuples(st.sampled_from(["A", "B", "PREROUTING"]), _RULES), max_size=12).map(
    lambda rules: "\n".join(
        [
            "*nat",
            ":PREROUTING ACCEPT [0:0]",
            ":A - [0:0]",
            ":B - [0:0]",
            *(f"-A {chain} {rule}" for chain, rule in rules),
        ]
    )
)


ENDS = (Verdict.ACCEPT, Verdict.DROP, Verdict.REJECT, Verdict.DNAT, Verdict.REDIRECT, Verdict.MASQUERADE)


class Saved(Surroundings):
    """The chains that were saved, and nothing known of all else."""

    def __init__(self, chains: Chains) -> None:
        self._chains = chains

    def owns_address(self, address: Address) -> bool:
        return address[0] == 10

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> list[ListedRule] | None:
        del table, header
        rules = self._chains.get(chain)
        return None if rules is None else [ListedRule(text, ObjectState.FOREIGN) for text in rules]


@given(_TABLES, st.sampled_from([bytes((10, 0, 0, 1)), bytes(15) + b"\1"]), st.sampled_from(Protocol))
def test_every_packet_has_a_verdict(text: str, address: bytes, protocol: Protocol) -> None:
    try:
        saved = Saved(read_tables(text)["nat"])
    except DecodeError:
        return
    packet = Packet(Address(address), Address(address), protocol, 80, "eth0")
    way = Traversal(saved, PacketHeader.of(packet))
    assert way.run_hook("nat", "PREROUTING") in (None, *ENDS)
    assert way.uncertain == any(Verdict.UNREADABLE in step.verdicts for step in way.steps)


_NUMBERS = st.one_of(st.sampled_from([0x20, 0xAC, 0x24, 0x07, 0x74, 0x94, 0x35, 0x06, -1, 0, 1, 12]), st.integers())
_STEPS = st.lists(st.lists(_NUMBERS, min_size=3, max_size=5).map(lambda step: " ".join(map(str, step))), max_size=8)


@given(st.one_of(st.text(max_size=40), _STEPS.map(lambda steps: ",".join([str(len(steps)), *steps]))))
def test_a_program_ends_with_an_answer_or_a_value_error(text: str) -> None:
    for address in ("203.0.113.9", "2001:db8::9"):
        with suppress(ValueError):
            assert run_program(text, ip(address)) in (True, False)
