"""What other modes, older versions and kube-proxy have left: found by name and removed; nobody else's is touched."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.own_network import run

from vipwire.model.net import Family
from vipwire.modes.registry import find_spec
from vipwire.modes.xtables.tool import IptablesTool, Variant
from vipwire.proxy_daemon.handover.leftovers import (
    LeftoverRemovals,
    Leftovers,
    Removed,
    list_engines,
    modes_of,
    remove_rules,
)

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("network")]

KUBE_PROXYS_TABLE = """
table ip kube-proxy {
  comment "rules for kube-proxy"
  chain services { counter; }
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
}
"""
OLDER = """
table ip vipwire { map of-old { type ipv4_addr : verdict; }; chain c { type filter hook input priority 7; drop; }; }
"""
FOREIGN_TABLES = """
table ip kube-proxy { chain services { counter; }; }
table inet vipwire { chain c { counter; }; }
table ip others { chain nat-prerouting { counter; }; }
"""
FOREIGN_RULES = """*nat
:OTHERS - [0:0]
-A PREROUTING -j OTHERS
COMMIT
*filter
:KUBE-ROUTER-FORWARD - [0:0]
-A FORWARD -j KUBE-ROUTER-FORWARD
COMMIT
"""
KUBELETS = """*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
"""
USERSPACE = """*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-A INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL
COMMIT
*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
-A PREROUTING -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-CONTAINER
-A OUTPUT -m comment --comment "handle ClusterIPs" -j KUBE-PORTALS-HOST
-A KUBE-PORTALS-CONTAINER -d 10.0.0.1/32 -p tcp -m comment --comment "a/b:" --dport 80 -j REDIRECT --to-ports 41234
COMMIT
"""
"""The chains of kube-proxy's userspace mode, which vipwire's has too."""


@dataclass(frozen=True)
class Rules:
    """A backend, as far as the leftovers are concerned."""

    variant: str


def of_kube_proxy() -> str:
    text = (Path(__file__).parent / "kube_proxy_restore.txt").read_text(encoding="utf-8")
    return text.replace("@SEP@", "KUBE-SEP-5LTSMWKBQLY34WMB").replace("@LOOP@", "! -d 127.0.0.0/8")


def write(engine: str, text: str) -> None:
    run(f"iptables-{engine}-restore --noflush", text)


def rules(engine: str) -> str:
    return "\n".join(line for line in run(f"iptables-{engine}-save").splitlines() if "KUBE-" in line)


def sweep(running: str, variant: str = "") -> LeftoverRemovals:
    return Leftovers(find_spec(running), {Family.IPV4: Rules(variant)}).remove_leftovers()


def found(result: LeftoverRemovals) -> set[str]:
    return {each.mode for each in result.removed}


@pytest.mark.parametrize("engine", ["nft", "legacy"])
def test_kube_proxys_chains_go_from_either_engine_and_others_stay(engine: str) -> None:
    write(engine, FOREIGN_RULES)
    before = run(f"iptables-{engine}-save -t nat") if engine == "legacy" else ""
    write(engine, of_kube_proxy())
    assert "KUBE-SVC-LOLE4ISW44XBNF3G" in rules(engine)
    (removed,) = sweep("nftables").removed
    assert removed[:2] == ("iptables", Family.IPV4)
    assert re.fullmatch(rf"iptables-{engine}: \d+ chains", removed.what)
    left = rules(engine).splitlines()
    assert sorted(re.sub(r" \[.*", "", line) for line in left) == [
        "-A FORWARD -j KUBE-ROUTER-FORWARD",
        ":KUBE-ROUTER-FORWARD -",
    ]
    assert "-A PREROUTING -j OTHERS" in run(f"iptables-{engine}-save -t nat")
    assert "OTHERS" in before or engine == "nft"
    assert sweep("nftables") == LeftoverRemovals()


def test_what_the_running_mode_has_stays_and_the_other_engine_is_cleared() -> None:
    for engine in ("nft", "legacy"):
        write(engine, of_kube_proxy())
    before = rules("nft")
    assert found(sweep("iptables", "nft")) == {"iptables"}
    assert rules("nft") == before
    assert rules("legacy") == ""


def test_userspace_modes_chains_go_beside_those_of_the_running_mode() -> None:
    write("nft", of_kube_proxy())
    before = rules("nft")
    write("nft", USERSPACE)
    assert found(sweep("iptables", "nft")) == {"userspace"}
    assert rules("nft") == before
    write("nft", USERSPACE)
    assert found(sweep("userspace", "nft")) == {"iptables"}
    assert "KUBE-PORTALS-CONTAINER" in rules("nft")
    assert "KUBE-SVC-" not in rules("nft")


def test_what_kubelet_makes_under_kube_proxys_names_stays() -> None:
    write("nft", KUBELETS)
    before = rules("nft")
    assert sweep("nftables") == LeftoverRemovals()
    assert rules("nft") == before


def test_kube_proxys_table_goes_and_one_that_is_only_called_so_stays() -> None:
    run("nft -f -", KUBE_PROXYS_TABLE)
    expected = (Removed("nftables", Family.IPV4, "table ip kube-proxy"),)
    assert sweep("nftables").removed == expected
    assert run("nft list tables") == ""
    run("nft -f -", FOREIGN_TABLES)
    before = run("nft list ruleset")
    assert sweep("iptables", "nft") == LeftoverRemovals()
    assert run("nft list ruleset") == before


def test_a_table_of_ours_of_an_unknown_layout_goes_unless_the_mode_is_nftables() -> None:
    run("nft -f -", OLDER)
    assert sweep("nftables") == LeftoverRemovals(), "the mode itself makes it anew, in one transaction"
    expected = (Removed("nftables", Family.IPV4, "table ip vipwire"),)
    assert sweep("userspace", "nft").removed == expected
    assert run("nft list tables") == ""


def test_what_a_trial_has_left_that_was_killed_in_its_midst_goes() -> None:
    write("nft", "*filter\n:KUBE-PROXY-PROBE - [0:0]\n-A KUBE-PROXY-PROBE -p tcp -j RETURN\nCOMMIT\n")
    write("nft", "*nat\n:KUBE-PROXY-PROBE - [0:0]\n:KUBE-PORTALS-PROBE - [0:0]\nCOMMIT\n")
    assert found(sweep("nftables")) == {"iptables", "userspace"}
    assert rules("nft") == ""


def test_a_half_that_a_crashed_sync_has_left_goes_and_the_rest_of_it() -> None:
    whole = of_kube_proxy()
    write("nft", whole[: whole.index("*nat")])
    assert found(sweep("userspace", "legacy")) == {"iptables"}
    assert rules("nft") == ""
    write("nft", whole[whole.index("*nat") : whole.index("*mangle")])
    assert found(sweep("nftables")) == {"iptables"}
    assert rules("nft") == ""


def test_looking_makes_no_tables() -> None:
    before = Path("/proc/thread-self/net/ip_tables_names").read_text()
    assert sweep("nftables") == LeftoverRemovals()
    assert run("nft list tables") == ""
    assert Path("/proc/thread-self/net/ip_tables_names").read_text() == before == ""


def test_a_rule_of_somebody_else_that_jumps_to_a_chain_keeps_it_empty() -> None:
    write("nft", of_kube_proxy())
    run("iptables-nft -t nat -A PREROUTING -p sctp -j KUBE-MARK-MASQ")
    (tool,) = (each for each in list_engines(Family.IPV4) if each.variant.value == "nft")
    assert remove_rules(tool).keys() == {"iptables"}
    left = [line for line in rules("nft").splitlines() if line.startswith("-A")]
    assert left == ["-A PREROUTING -p sctp -j KUBE-MARK-MASQ"]


@pytest.mark.parametrize("variant", list(Variant))
def test_rules_of_the_running_mode_are_not_read(variant: Variant) -> None:
    class Unread(IptablesTool):
        def save(self, *tables: str, counted: bool = False) -> str:
            raise AssertionError(f"read: {tables} {counted}")

    write(variant.value, of_kube_proxy())
    tool = Unread(Family.IPV4, variant, "a test")
    assert remove_rules(tool, "iptables") == {}
    assert modes_of(tool) == {"iptables"}
    with pytest.raises(AssertionError, match="read"):
        remove_rules(tool)
