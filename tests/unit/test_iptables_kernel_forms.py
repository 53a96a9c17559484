"""Rules as expressions of nf_tables: what is not ours is left to the tools, and never half understood."""

import pytest

from vipwire.backends.iptables.access.trial import samples
from vipwire.backends.iptables.settings import Settings
from vipwire.errors import DecodeError
from vipwire.model.net import Family
from vipwire.xtables.binary.expressions import COUNTER, Encoder, uncounted
from vipwire.xtables.binary.shown import Reader
from vipwire.xtables.binary.words import UnknownRuleError


@pytest.mark.parametrize("family", list(Family), ids=lambda family: family.value)
def test_a_rule_of_every_kind_reads_as_it_was_written(family: Family) -> None:
    encode, words = Encoder(family), Reader(family)
    for rules in samples(family, Settings()).values():
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
    encode, words = Encoder(Family.IPV4), Reader(Family.IPV4)
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
    assert uncounted(whole[:at] + b"\1" * 8 + whole[at + 8 :]) == whole
