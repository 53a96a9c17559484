"""`explain`, `check` and `status` name chains of others that may decide before vipwire, and no other chains.

The packet comes from outside to a Service's ClusterIP, port 80.
"""

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.own_network import own_network, run
from tests.proxy.kernel.test_inspect_commands import as_json, vipwire
from tests.proxy.unit.inspected import PODS, example, make_config

from vipwire.linux.bpf.syscall import BpfCommand, address_of, buffer_of, call_bpf
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.manifests import Backend, Port
from vipwire_lab.namespaces.topology import DEFAULT

pytestmark = pytest.mark.kernel

VIP = "10.96.0.10"
PRE = "add table {t}; add chain {t} pre {{ type {type} hook {hook} priority {at}; }}; "
POD = "10.244.1.11"
"""One of the endpoints; all are in 10.244.0.0/16, at port 8080."""


def chain(rule: str, at: int | str, kind: str = "filter", table: str = "ip others", hook: str = "prerouting") -> str:
    """Write a base chain with a rule."""
    return PRE.format(t=table, type=kind, at=at, hook=hook) + f"add rule {table} pre {rule}"


EARLIER = {
    "dnat at an earlier priority": (
        chain("ip daddr 10.96.0.0/16 tcp dport 80 dnat to 10.9.9.9", -150, "nat"),
        "translate",
    ),
    "dnat at vipwire's own": (chain("tcp dport 80 dnat to 10.9.9.9", -104, "nat"), "translate"),
    "redirect, in a table of both families": (
        chain("tcp dport 80 redirect to :99", -110, "nat", "inet others"),
        "translate",
    ),
    "a drop before connection tracking": (chain("tcp dport 80 drop", -300), "drop"),
    "a drop between all priorities of nat": (chain("ip saddr 203.0.113.0/24 drop", -101), "drop"),
    "the policy": (
        "add table ip others; add chain ip others pre { type filter hook prerouting priority -150; policy drop; }",
        "drop",
    ),
    "a drop behind a jump": (
        "add table ip others; add chain ip others a; add rule ip others a tcp dport 80 counter drop; "
        + chain("jump a", -200),
        "drop",
    ),
    "a drop in a verdict map": (chain("tcp dport vmap { 80 : drop, 81 : accept }", -200), "drop"),
    "a drop in a named verdict map": (
        "add table ip others; add chain ip others a; add rule ip others a drop; "
        "add map ip others m { type ipv4_addr : verdict; }; add element ip others m { 10.96.0.10 : goto a }; "
        + chain("ip daddr vmap @m", -200),
        "drop",
    ),
    "a drop by a set": (
        "add table ip others; add set ip others s { type ipv4_addr; }; " + chain("ip saddr @s drop", -200),
        "drop",
    ),
    "a range of ports": (chain("tcp dport 1-1024 drop", -200), "drop"),
    "all other ports": (chain("tcp dport != 22 drop", -200), "drop"),
    "all other protocols": (chain("meta l4proto != udp drop", -200), "drop"),
    "a limit of new connections": (chain("ct state new limit rate over 5/second drop", -150), "drop"),
    "no tracking": (chain("ip daddr 10.96.0.10 notrack", -300), "untrack"),
    "another destination without NAT": (chain("ip daddr 10.96.0.10 ip daddr set 10.9.9.9", -300), "translate"),
    "what the reverse path decides": (chain("fib saddr . iif oif missing drop", -300), "drop"),
    "masquerading before vipwire's": (chain("masquerade", 95, "nat", hook="postrouting"), "translate"),
    "source NAT at vipwire's own priority, by endpoint": (
        chain(f"ip daddr {POD} tcp dport 8080 snat to 10.9.9.9", 96, "nat", hook="postrouting"),
        "translate",
    ),
    "source NAT of what is delivered here, in a table of both families": (
        chain("tcp dport 8080 snat ip to 10.9.9.9", 90, "nat", "inet others", "input"),
        "translate",
    ),
    "vipwire's own mark": (chain("meta mark set meta mark | 0x4000", -300), "mark"),
    "a mark without vipwire's bit, behind its own": (
        chain("ip daddr 10.244.0.0/16 meta mark set 0x80", -150, hook="forward"),
        "unmark",
    ),
    "the connection's mark, behind vipwire's own": (chain("meta mark set ct mark", 0), "unmark"),
    "a drop at an interface": (chain("tcp dport 80 drop", 0, "filter", "netdev others", "ingress device lo"), "drop"),
    "a drop at an interface, in a table of both families": (
        chain("ip daddr 10.96.0.10 drop", 0, "filter", "inet others", "ingress device lo"),
        "drop",
    ),
    "another way out at an interface": (
        chain("tcp dport 80 fwd to lo", 0, "filter", "netdev others", "ingress device lo"),
        "divert",
    ),
}
LATER = {
    "dnat at iptables' priority": chain("tcp dport 80 dnat to 10.9.9.9", -100, "nat"),
    "a drop behind nat": chain("tcp dport 80 drop", -99),
    "another port": chain("tcp dport 81 drop", -300),
    "other ports": chain("tcp dport 81-90 drop", -300),
    "another protocol": chain("meta l4proto udp drop", -300),
    "another destination": chain("ip daddr 172.17.0.2 iifname != docker0 drop", -300),
    "another network": chain("ip daddr 10.97.0.0/16 dnat to 10.9.9.9", -150, "nat"),
    "another source": chain("ip saddr 192.0.2.0/24 drop", -300),
    "another interface": chain('iifname "cali*" drop', -300),
    "invalid packets": chain("ct state invalid drop", -150),
    "established connections": chain("ct state established,related drop", -150),
    "it was accepted": chain("tcp dport 80 accept; add rule ip others pre drop", -150),
    "marks, counters, logs": chain(
        'counter log prefix "x" meta mark set 0x80 ct mark set 0x80 meta nftrace set 1', -300
    ),
    "the traffic class": chain("ip dscp set cs1", -150),
    "a chain that is not led to": "add table ip others; add chain ip others a; add rule ip others a drop; "
    + chain("tcp dport 81 jump a", -300),
    "the other family": chain("drop", -300, table="ip6 others"),
    "another hook": (
        "add table ip others; add chain ip others f { type filter hook forward priority -300; policy drop; }"
    ),
    "masquerading behind vipwire's": chain("masquerade", 97, "nat", hook="postrouting"),
    "masquerading of what leaves the cluster": chain(
        "ip daddr 10.244.0.0/16 return; add rule ip others pre masquerade", 90, "nat", hook="postrouting"
    ),
    "masquerading of the Service's port": chain("tcp dport 80 masquerade", 90, "nat", hook="postrouting"),
    "a drop at postrouting": chain("drop", -300, hook="postrouting"),
    "marks that leave vipwire's bit": chain(
        "meta mark set meta mark & 0xffff4fff | 0x80; add rule ip others pre meta mark set meta mark ^ 0x1",
        -150,
        hook="forward",
    ),
    "vipwire's bit cleared before it": chain("meta mark set 0", -150),
    "vipwire's bit behind masquerading": chain("meta mark set 0x4000", 101, hook="postrouting"),
    "another interface's ingress": (
        "add table netdev others; add chain netdev others pre "
        "{ type filter hook ingress device other priority 0; policy drop; }"
    ),
    "a bridge that the packet does not pass": chain("drop", -300, table="bridge others"),
    "what the node sends": (
        "add table ip others; add chain ip others o { type filter hook output priority -300; policy drop; }"
    ),
}
BY_IPTABLES = {
    "raw, a drop": ("-t raw -A PREROUTING -p tcp --dport 80 -j DROP", "drop"),
    "raw, no tracking": (f"-t raw -A PREROUTING -d {VIP} -j CT --notrack", "untrack"),
    "mangle, a queue": (
        "-t mangle -A PREROUTING -p tcp -m multiport --dports 80,443 -j NFQUEUE --queue-num 1",
        "queue",
    ),
    "mangle, another port": ("-t mangle -A PREROUTING -p tcp --dport 81 -j DROP", ""),
    "mangle, other ports": ("-t mangle -A PREROUTING -p tcp ! --dport 80 -j DROP", ""),
    "mangle, invalid": ("-t mangle -A PREROUTING -m conntrack --ctstate INVALID -j DROP", ""),
    "mangle, a mark": ("-t mangle -A PREROUTING -j CONNMARK --restore-mark", ""),
    "raw, another destination": ("-t raw -A PREROUTING -d 169.254.20.10/32 -p udp --dport 53 -j CT --notrack", ""),
    "nat": ("-t nat -A PREROUTING -p tcp --dport 80 -j DNAT --to-destination 10.9.9.9", ""),
    "nat, masquerading": ("-t nat -A POSTROUTING -j MASQUERADE", ""),
    "mangle, vipwire's own mark": ("-t mangle -A PREROUTING -p tcp -j MARK --set-xmark 0x4000/0x4000", "mark"),
    "mangle, any mark behind vipwire's": ("-t mangle -A FORWARD -p tcp --dport 8080 -j MARK --set-mark 1", "unmark"),
    "mangle, a connection's mark behind vipwire's": ("-t mangle -A POSTROUTING -j CONNMARK --restore-mark", "unmark"),
    "mangle, a mark of others": ("-t mangle -A FORWARD -j MARK --set-xmark 0x80/0x80", ""),
    "mangle, what others restore": ("-t mangle -A FORWARD -j CONNMARK --restore-mark --mask 0x80", ""),
    "mangle, a mark of the Service's port": ("-t mangle -A FORWARD -p tcp --dport 80 -j MARK --set-mark 1", ""),
    "filter, a drop": ("-A FORWARD -j DROP", ""),
}


@contextlib.contextmanager
def node() -> Iterator[None]:
    with own_network():
        run("ip addr add 192.168.0.1/24 dev lo")
        run("ip route add default dev lo")
        run("ip link add other type veth peer name beyond")
        yield


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Flags, and the rules of both families that vipwire writes by them."""
    folder = tmp_path_factory.mktemp("earlier")
    six = manifests.build_service_with_slices(
        DEFAULT, "six", ["fd00:10:96::10"], [Port(80, 8080)], [Backend(PODS["pod-1a"])]
    )
    make_config(folder, [*example(), *six])
    made = [
        f"--manifests={folder}",
        f"--state-dir={folder / 'state'}",
        "--hostname-override=node-1",
        "--cluster-cidr=10.244.0.0/16",
        "--nodeport-addresses=primary",
    ]
    with pytest.MonkeyPatch.context() as patch, node():
        patch.delenv("VIPWIRE_FLAGS", raising=False)
        return made, "".join(vipwire("diff", f"--family={family}", *made).stdout for family in ("ipv4", "ipv6"))


@pytest.fixture
def flags(rendered: tuple[list[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A node whose table vipwire has written, in a network namespace of its own."""
    monkeypatch.delenv("VIPWIRE_FLAGS", raising=False)
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "lock"))
    made, rules = rendered
    with node():
        run("nft -f -", rules)
        yield made


def load(script: str) -> None:
    """Load commands of nft."""
    done = subprocess.run(["nft", "-f", "-"], input=script, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def kernel(flags: list[str], source: str = "203.0.113.9", *more: str) -> Any:
    given = [f"--from={source}"] if source else []
    return as_json("explain", "web", *given, *more, *flags)["kernel"]


def judge(flags: list[str], effect: str) -> None:
    """See what `explain` says, with the effect that one chain has or without any."""
    found = kernel(flags)
    if effect:
        assert (found["agrees"], found["state"]) == (None, "undecided"), found
        assert [each["may"] for each in found["earlier"]] == [[effect]]
        assert found["earlier"][0]["table"] in found["difference"]
    else:
        assert (found["agrees"], found["state"], found["earlier"]) == (True, "same", []), found


def test_nothing_is_earlier_without_others(flags: list[str]) -> None:
    judge(flags, "")
    assert as_json("status", *flags)["earlier"] == []


@pytest.mark.parametrize(("script", "effect"), EARLIER.values(), ids=EARLIER)
def test_a_chain_that_may_decide_before_is_named(flags: list[str], script: str, effect: str) -> None:
    load(script)
    judge(flags, effect)
    table = script.removeprefix("add table ").partition(";")[0]
    hook = script.partition(" hook ")[2].split()[0]
    (said,) = [each for each in as_json("status", *flags)["earlier"] if each["family"] == "IPv4"]
    assert (said["table"], said["chain"], said["hook"], said["may"]) == (table, "pre", hook, [effect])
    findings = as_json("check", *flags)["findings"]
    levels = {each["level"] for each in findings if (each["area"], each["what"]) == ("earlier", f"{table} pre")}
    assert levels == {"warning" if effect == "translate" else "note"}


@pytest.mark.parametrize("script", LATER.values(), ids=LATER)
def test_a_chain_that_cannot_decide_before_is_not(flags: list[str], script: str) -> None:
    load(script)
    judge(flags, "")


@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize(("rule", "effect"), BY_IPTABLES.values(), ids=BY_IPTABLES)
def test_rules_of_iptables_count_by_their_tables(flags: list[str], rule: str, effect: str, variant: str) -> None:
    run(f"iptables-{variant} {rule}")
    judge(flags, effect)


def test_what_the_node_itself_sends_meets_other_chains(flags: list[str]) -> None:
    load("add table ip others; add chain ip others o { type nat hook output priority -120; }")
    load("add rule ip others o tcp dport 80 dnat to 127.0.0.1:99")
    found = kernel(flags, "")
    assert found["state"] == "undecided"
    assert found["earlier"][0] | {"family": "IPv4"} == {
        "family": "IPv4",
        "table": "ip others",
        "chain": "o",
        "hook": "output",
        "priority": -120,
        "may": ["translate"],
    }
    judge(flags, "")


def test_a_difference_of_vipwires_own_rules_is_still_one(flags: list[str]) -> None:
    load(EARLIER["the policy"][0])
    run("nft flush chain ip vipwire nat-prerouting")
    found = kernel(flags)
    assert (found["agrees"], found["state"], len(found["earlier"])) == (False, "otherwise", 1)


def test_the_words_for_a_person_name_the_chain(flags: list[str]) -> None:
    load(EARLIER["the policy"][0])
    result = vipwire("explain", "web", "--from=203.0.113.9", *flags)
    assert result.exit_code == 0
    assert "kernel: undecided: chain pre of table ip others" in result.stdout
    assert "does the same" not in result.stdout


def judge_ipv6(flags: list[str], effect: str) -> None:
    found = as_json("explain", "[fd00:10:96::10]:80", "--from=2001:db8::9", *flags)["kernel"]
    assert [each["may"] for each in found["earlier"]] == ([[effect]] if effect else []), found
    assert found["state"] == ("undecided" if effect else "same")


@pytest.mark.parametrize(
    ("script", "effect"),
    [
        (chain("ip6 daddr fd00:10:244::/48 masquerade", 90, "nat", "ip6 others", "postrouting"), "translate"),
        (chain("ip6 daddr fd00:10:96::/112 masquerade", 90, "nat", "ip6 others", "postrouting"), ""),
        (chain("masquerade", 90, "nat", "ip others", "postrouting"), ""),
        (chain("ip6 daddr fd00:10:96::10 drop", -300, table="inet others"), "drop"),
        (chain("tcp dport 80 drop", 0, "filter", "netdev others", "ingress device lo"), "drop"),
        (chain("ip daddr 10.96.0.10 drop", 0, "filter", "netdev others", "ingress device lo"), ""),
    ],
)
def test_chains_are_read_for_ipv6_as_well(flags: list[str], script: str, effect: str) -> None:
    run("ip -6 route add default dev lo")
    load(script)
    judge_ipv6(flags, effect)


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_rules_of_ip6tables_count_by_their_tables(flags: list[str], variant: str) -> None:
    run("ip -6 route add default dev lo")
    run(f"iptables-{variant} -t raw -A PREROUTING -j DROP")
    judge_ipv6(flags, "")
    run(f"ip6tables-{variant} -t raw -A PREROUTING -p tcp --dport 80 -j DROP")
    judge_ipv6(flags, "drop")


def test_a_bridges_chains_are_before_those_of_ip(flags: list[str]) -> None:
    run("ip link add br0 type bridge")
    run("ip link set br0 up")
    run("ip route add 203.0.113.0/24 dev br0")
    load(chain("tcp dport 80 drop", -300, table="bridge others"))
    judge(flags, "drop")


def test_filters_at_an_interface_may_do_anything(flags: list[str]) -> None:
    run("tc qdisc add dev other clsact")
    run("tc filter add dev other ingress protocol ip u32 match u32 0 0 action mirred egress redirect dev beyond")
    judge(flags, "")
    assert [each["table"] for each in as_json("status", *flags)["earlier"]] == ["tc at other"] * 2
    run("tc qdisc add dev lo ingress")
    run("tc filter add dev lo ingress protocol ip u32 match u32 0 0 action mirred egress redirect dev other")
    judge(flags, "other")
    (found,) = kernel(flags)["earlier"]
    assert (found["table"], found["chain"], found["hook"]) == ("tc at lo", "u32", "ingress")
    assert kernel(flags, "")["earlier"] == []


@pytest.mark.parametrize(("sort", "hook", "kind"), [("XDP", 37, 6), ("tcx", 46, 3)])
def test_programs_at_an_interface_may_do_anything(flags: list[str], sort: str, hook: int, kind: int) -> None:
    code, licence = buffer_of(struct.pack("=QQ", 0x2_0000_00B7, 0x95)), buffer_of(b"GPL\0")  # r0 = 2; exit
    loading = struct.pack("=IIQQ24x16sII", kind, 2, address_of(code), address_of(licence), b"others", 0, 0)
    program = call_bpf(BpfCommand.PROGRAM_LOAD, loading)
    link = call_bpf(BpfCommand.LINK_CREATE, struct.pack("=IIII32x", program, socket.if_nametoindex("lo"), hook, 0))
    try:
        judge(flags, "other")
        assert [each["table"] for each in kernel(flags)["earlier"]] == [f"{sort} at lo"]
        said = as_json("status", *flags)["earlier"][0]["said"]
        assert said.endswith(f" of {sort} at lo (ingress) runs before vipwire and may change")
    finally:
        os.close(link)
        os.close(program)
    judge(flags, "")


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ("-A POSTROUTING -j MASQUERADE", False),
        ("-I POSTROUTING -j MASQUERADE", True),
        ("-I POSTROUTING -m mark --mark 0x2000/0x2000 -j MASQUERADE", False),
        ("-I POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE", True),
        ("-I POSTROUTING -m mark ! --mark 0x2000/0x2000 -j MASQUERADE", True),
    ],
)
def test_rules_before_vipwires_in_a_chain_of_iptables_are_named(flags: list[str], rule: str, *, named: bool) -> None:
    mode = ["--proxy-mode=iptables", *flags]
    load("delete table ip vipwire; delete table ip6 vipwire")
    for family in ("ipv4", "ipv6"):
        written = vipwire("diff", f"--family={family}", *mode).stdout
        tool = "iptables-restore" if family == "ipv4" else "ip6tables-restore"
        subprocess.run([tool, "--noflush"], input=written, text=True, check=True)
    run(f"iptables -t nat {rule}")
    found = as_json("explain", "web", "--from=203.0.113.9", *mode)["kernel"]
    expected = [("POSTROUTING", ["translate"])] if named else []
    assert [(each["chain"], each["may"]) for each in found["earlier"]] == expected
    assert found["state"] == ("undecided" if expected else "same"), found
