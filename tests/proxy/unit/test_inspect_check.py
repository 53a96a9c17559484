"""What `vipwire check` makes of the facts of a machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from vipwire.config.configuration import Config
from vipwire.inspect.check.facts import Facts, ForeignTable, gather_facts
from vipwire.inspect.check.findings import Level, check_document, check_view, list_findings
from vipwire.inspect.command.show import build_console
from vipwire.linux.host.kernel_release import KernelRelease
from vipwire.proxy_daemon.start.record import ProxyRecord, ProxyState

FINE = Facts(
    release=KernelRelease(6, 1),
    capabilities=frozenset({"CAP_NET_ADMIN"}),
    sysctls={
        "net/ipv4/ip_forward": 1,
        "net/ipv6/conf/all/forwarding": 1,
        "net/netfilter/nf_conntrack_count": 10,
        "net/netfilter/nf_conntrack_max": 1000,
    },
    modes={"nftables": "", "ipvs": "the kernel has no IPVS: load the module ip_vs"},
    tables=(ForeignTable("ip vipwire", ("services",)), ForeignTable("inet firewalld", ("filter_INPUT",))),
    sctp=True,
)


RECORD = ProxyRecord(7, 0.0, "1.2.3", "node-1", "nftables")


def found(facts: Facts, mode: str = "nftables") -> dict[str, tuple[Level, str]]:
    return {f"{each.area} {each.what}": (each.level, each.remedy) for each in list_findings(facts, mode)}


def test_a_machine_that_is_fine_has_nothing_bad_and_no_warning() -> None:
    document = check_document(list_findings(FINE, "nftables"), "nftables")
    assert (document["bad"], document["warnings"]) == (0, 0)


@pytest.mark.parametrize(
    ("change", "what", "level", "remedy"),
    [
        ({"capabilities": frozenset()}, "kernel rights", Level.BAD, "NET_ADMIN"),
        ({"ipv6": False}, "kernel IPv6", Level.WARNING, "ipv6.disable"),
        (
            {"sysctls": {"net/ipv4/ip_forward": 0}, "settings_writable": False},
            "sysctl net.ipv4.ip_forward",
            Level.BAD,
            "ip_forward=1",
        ),
        (
            {"sysctls": {"net/ipv4/ip_forward": 0}, "proxy": (ProxyState.RUNNING, RECORD)},
            "sysctl net.ipv4.ip_forward",
            Level.BAD,
            "ip_forward=1",
        ),
        ({"proxy": (ProxyState.DIED, RECORD)}, "proxy state", Level.WARNING, "vipwire proxy"),
        (
            {"proxy": (ProxyState.RUNNING, replace(RECORD, problems=("there is no Node 'x'",)))},
            "proxy node",
            Level.WARNING,
            "--hostname-override",
        ),
        (
            {"proxy": (ProxyState.RUNNING, replace(RECORD, failing={"nodes": "cannot connect"}))},
            "proxy nodes",
            Level.WARNING,
            "stay until the proxy can read",
        ),
        ({"sysctls": {"net/ipv4/conf/all/rp_filter": 1}}, "sysctl net.ipv4.conf.all.rp_filter", Level.WARNING, "=2"),
        (
            {"sysctls": {"net/bridge/bridge-nf-call-iptables": 0}},
            "sysctl net.bridge.bridge-nf-call-iptables",
            Level.WARNING,
            "=1",
        ),
        (
            {"sysctls": {"net/netfilter/nf_conntrack_count": 990, "net/netfilter/nf_conntrack_max": 1000}},
            "conntrack fill",
            Level.BAD,
            "--conntrack-min",
        ),
        ({"sysctls": {"net/netfilter/nf_conntrack_events": 0}}, "conntrack events", Level.WARNING, "events=1"),
        ({"conntrack": "no access: run as root"}, "conntrack netlink", Level.BAD, "run as root"),
        ({"conntrack_losses": {"insert_failed": 3}}, "conntrack insert_failed", Level.WARNING, "addresses"),
        ({"tables": None}, "others nftables", Level.WARNING, "root"),
        ({"tables": (ForeignTable("ip kube-proxy"),)}, "others kube-proxy", Level.BAD, "delete table ip kube-proxy"),
        ({"tables": (ForeignTable("ip nat", ("KUBE-SERVICES",)),)}, "others kube-proxy", Level.BAD, "--cleanup"),
        ({"legacy": ("KUBE-SERVICES",)}, "others kube-proxy", Level.BAD, "--cleanup"),
        ({"ipvs_services": 5}, "others IPVS", Level.WARNING, "ipvsadm"),
        ({"interfaces": ("lo", "kube-ipvs0")}, "others kube-ipvs0", Level.BAD, "ip link delete"),
        (
            {"legacy": ("DOCKER",), "tables": (ForeignTable("ip nat", ("POSTROUTING",)),)},
            "others iptables",
            Level.WARNING,
            "update-alternatives",
        ),
        ({"modes": {"nftables": "no nf_tables: load it"}}, "mode nftables (chosen)", Level.BAD, "load it"),
    ],
)
def test_what_is_wrong_is_said_with_a_remedy(change: dict[str, object], what: str, level: Level, remedy: str) -> None:
    facts = replace(FINE, **change)  # type: ignore[arg-type]  # the fields are those of the table above
    got, said = found(facts)[what]
    assert got is level
    assert remedy in said


def verdict(facts: Facts) -> tuple[int, str]:
    document = check_document(list_findings(facts, "nftables"), "nftables")
    screen = build_console(200)
    with screen.capture() as out:
        screen.print(check_view(document, wide=True))
    return document["bad"], out.get()


def test_what_the_proxy_will_set_is_not_bad() -> None:
    fresh = replace(FINE, sysctls={"net/ipv4/ip_forward": 0, "net/ipv6/conf/all/forwarding": 0})
    assert found(fresh)["sysctl net.ipv4.ip_forward"] == (Level.NOTE, "")
    bad, said = verdict(fresh)
    assert bad == 0
    assert "`vipwire proxy` sets this to 1" in said
    assert "nftables mode can work here (0 warnings)" in said


def test_a_mode_needs_the_right_to_program_it() -> None:
    said = {each.said for each in list_findings(FINE, "nftables") if each.area == "mode"}
    weak = {each.said for each in list_findings(replace(FINE, capabilities=frozenset()), "nftables")}
    assert "can run here" in said
    assert "can run here, with CAP_NET_ADMIN" in weak


def test_what_kubelet_and_others_have_is_left_alone() -> None:
    facts = replace(FINE, tables=(ForeignTable("ip mangle", ("KUBE-KUBELET-CANARY", "KUBE-FIREWALL")),))
    assert found(facts)["others nftables"] == (Level.OK, "")


@pytest.mark.parametrize(
    ("mode", "chain"),
    [
        ("iptables", "KUBE-SVC-NPX46M4PTMTKRN6Y"),
        ("ipvs", "KUBE-IPVS-FILTER"),
        ("userspace", "KUBE-PORTALS-HOST"),
    ],
)
def test_chains_of_a_mode_are_its_own_and_those_of_others_are_not(mode: str, chain: str) -> None:
    facts = replace(FINE, tables=(ForeignTable("ip nat", (chain,)),))
    assert found(facts, mode)["others iptables"] == (Level.OK, "")
    assert "others kube-proxy" not in found(facts, mode)
    for other in {"iptables", "ipvs", "userspace", "nftables"} - {mode}:
        assert found(facts, other)["others kube-proxy"][0] is Level.BAD


def test_ipvs_is_nobody_elses_in_ipvs_mode() -> None:
    assert "others IPVS" not in found(replace(FINE, ipvs_services=5), "ipvs")


def test_a_machine_of_which_nothing_can_be_read_makes_facts_all_the_same(tmp_path: Path) -> None:
    facts = gather_facts(Config(), tmp_path)
    assert (facts.sysctls, facts.capabilities, facts.ipvs_services, facts.ipv6) == ({}, frozenset(), None, False)
    document = check_document(list_findings(facts, "nftables"), "nftables")
    screen = build_console(200)
    with screen.capture() as out:
        screen.print(check_view(document, wide=True))
    assert document["bad"] > 0
    assert "will not work well here" in out.get()
