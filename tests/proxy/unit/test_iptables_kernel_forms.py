"""Rules as expressions of nf_tables: what is not ours is left to the tools, and never half understood."""

from collections.abc import Sequence

import pytest

from vipwire.errors import DecodeError
from vipwire.linux.netlink import message
from vipwire.linux.netlink.message import encode_attribute, encode_nested
from vipwire.linux.netlink.nftables import wire
from vipwire.linux.netlink.nftables.xtables_rules import list_rules
from vipwire.model.net import Family
from vipwire.modes.iptables.access.nft_dump import find_expressions, has_rules
from vipwire.modes.iptables.driver import build_sample_rules
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.xtables.binary.expressions import COUNTER, COUNTER_NUMBERS, Encoder, reset_counter
from vipwire.modes.xtables.binary.shown import RuleReader
from vipwire.modes.xtables.binary.words import UnknownRuleError


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_a_rule_of_every_kind_reads_as_it_was_written(family: Family) -> None:
    encode, words = Encoder(family), RuleReader(family)
    for rules in build_sample_rules(family, RuleSettings()).values():
        for rule in rules:
            assert words(encode(rule).expressions) == rule


@pytest.mark.parametrize(
    "rule",
    [
        "-o eth0 -j ACCEPT",
        "-i + -j ACCEPT",
        "! -p tcp -j ACCEPT",
        "-p gre -j ACCEPT",
        "-s 10.0.0.0/33 -j ACCEPT",
        "-s fd00::1/128 -j ACCEPT",
        "-s 10.0.0 -j ACCEPT",
        "-s 10.0.0.1/32 -s 10.0.0.2/32 -j ACCEPT",
        "-p tcp -m tcp --sport 80 -j ACCEPT",
        "-p tcp -m tcp --tcp-flags SYN SYN -j ACCEPT",
        "-m multiport --dports 80,81 -j ACCEPT",
        '-m comment --comment "a \\"b\\"" -j ACCEPT',
        f'-m comment --comment "{"x" * 256}" -j ACCEPT',
        "-m conntrack --ctstate NEW --ctproto tcp -j ACCEPT",
        "-m conntrack --ctstate SEEN -j ACCEPT",
        "-m statistic --mode nth --every 2 --packet 1 -j ACCEPT",
        "-m recent --update --seconds 1 --name A --mask 255.255.255.255 --rsource -j ACCEPT",
        "-m recent --set --name A --mask 255.255.255.0 --rsource",
        "-m addrtype --dst-type BROADCAST -j ACCEPT",
        '-m bpf --bytecode "2,6 0 0 1" -j ACCEPT',
        '-m bpf --bytecode "1,6 0 0 99999999999" -j ACCEPT',
        "-m mark --mark 16 -j ACCEPT",
        "-m nfacct --nfacct-name Of-Others -j ACCEPT",
        "-j REJECT --reject-with icmp-host-unreachable",
        "-j MARK --set-mark 1",
        "-j MASQUERADE --to-ports 1-2",
        "-j DNAT --to-destination 10.0.0.1-10.0.0.2",
        "-j DNAT --to-destination 10.0.0.1:99999",
        "-j DNAT --to-destination fd00::1",
        "-j LOG",
        "-j cali-FORWARD",
        "-g cali-FORWARD",
    ],
)
def test_what_is_not_ours_is_not_written(rule: str) -> None:
    with pytest.raises(UnknownRuleError):
        Encoder(Family.IPV4)(rule)


def test_bytes_that_say_more_than_words_are_not_read() -> None:
    """Whatever byte of a rule changes: it is another rule in words as well, or none that is known."""
    encode, words = Encoder(Family.IPV4), RuleReader(Family.IPV4)
    rule = '-s 10.0.0.1/32 -p tcp -m comment --comment "a b" -m tcp --dport 80 -j DNAT --to-destination 10.1.0.1:8080'
    whole = encode(rule).expressions
    counted = range(whole.index(COUNTER), whole.index(COUNTER) + len(COUNTER))
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            read = words(changed)
        except (UnknownRuleError, KeyError, ValueError, IndexError, DecodeError):
            continue
        assert read != rule or at in counted, f"byte {at}"


def test_what_a_rule_has_counted_is_left_out() -> None:
    whole = Encoder(Family.IPV4)("-j ACCEPT").expressions
    at = whole.index(COUNTER) + len(COUNTER) - 8
    assert reset_counter(whole[:at] + b"\1" * 8 + whole[at + 8 :]) == whole


REQUEST = list_rules(Family.IPV4, "nat", "KUBE-SEP-A")
RULES = ("-s 10.0.0.1/32 -j KUBE-MARK-MASQ", "-p tcp -m tcp -j DNAT --to-destination 10.0.0.1:80", "-j KUBE-SVC-B")


def dump_of(rules: Sequence[str], *more: bytes) -> bytes:
    """Write what the kernel lists of a chain; each rule has counted, and has `more` behind its expressions."""
    found = bytearray()
    for number, rule in enumerate(rules, 1):
        whole = Encoder(Family.IPV4)(rule).expressions
        at = whole.index(COUNTER) + len(COUNTER)
        counted = whole[: at - 8] + b"counted!" + whole[at:]
        handles = [encode_attribute(wire.RULE_HANDLE, number.to_bytes(8))]
        handles += [encode_attribute(3, bytes(8))] * (number > 1)  # NFTA_RULE_POSITION
        body = b"".join((REQUEST, *handles, encode_nested(wire.RULE_EXPRESSIONS, counted), *more))
        found += message.encode_message(0xA06, 2, 7, body)
    return bytes(found)


def compared(dump: bytes, rules: Sequence[str] = RULES) -> bool:
    return has_rules(dump, find_expressions(REQUEST), map(Encoder(Family.IPV4).split_rule, rules))


def test_a_chain_that_has_counted_holds_its_rules_and_no_others() -> None:
    dump = dump_of(RULES)
    assert compared(dump)
    assert compared(b"", ())
    for other in (RULES[:2], RULES[1:], RULES[::-1], (*RULES, RULES[2]), ()):
        assert not compared(dump, other)
    assert not compared(b"")
    assert not compared(dump[:-4])
    assert not compared(dump + bytes(16))
    assert not compared(dump_of(RULES, encode_attribute(7, b"note")))


def test_whatever_byte_of_an_expression_differs_shows() -> None:
    dump, at = dump_of(RULES[:1]), find_expressions(REQUEST)
    numbers = dump.index(COUNTER_NUMBERS[:12]), dump.index(COUNTER_NUMBERS[:12]) + len(COUNTER_NUMBERS)
    flags = at + 3  # the upper byte of the attribute's type: kernels mark what is nested, or do not
    for place in range(at, len(dump)):
        changed = dump[:place] + bytes([dump[place] ^ 1]) + dump[place + 1 :]
        if not numbers[0] <= place < numbers[1] and place != flags:
            assert not compared(changed, RULES[:1]), place
