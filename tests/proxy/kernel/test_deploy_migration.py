"""What docs/migrate-from-kube-proxy.md says about what kube-proxy has left, and about both proxies side by side.

kube-proxy's rules are written here in its shape: its table and chains, hooks and priorities, with one Service.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Scene, prepare, reached, scene, service_of, slice_for, stage
from tests.fakes.own_network import run

pytestmark = pytest.mark.kernel
VIP, IDLE_VIP = "10.96.0.1", "10.96.0.2"
OLD, NEW = "10.244.0.9", "10.244.0.1"
DONE = "found no rules of other modes"

NFTABLES = f"""\
table ip kube-proxy {{
  map service-ips {{
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = {{ {VIP} . tcp . 80 : goto service-ABC-default/web/tcp/http }}
  }}
  map no-endpoint-services {{
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = {{ {IDLE_VIP} . tcp . 80 : goto reject-chain }}
  }}
  chain reject-chain {{
    reject
  }}
  chain service-ABC-default/web/tcp/http {{
    goto endpoint-DEF
  }}
  chain endpoint-DEF {{
    meta l4proto tcp dnat to {OLD}:8080
  }}
  chain services {{
    ip daddr . meta l4proto . th dport vmap @service-ips
  }}
  chain nat-prerouting {{
    type nat hook prerouting priority dstnat
    jump services
  }}
  chain nat-output {{
    type nat hook output priority -100
    jump services
  }}
  chain filter-output {{
    type filter hook output priority -110
    ct state new ip daddr . meta l4proto . th dport vmap @no-endpoint-services
  }}
}}
"""
IPTABLES = f"""\
*filter
:KUBE-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A OUTPUT -j KUBE-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d {IDLE_VIP}/32 -p tcp -m tcp --dport 80 -j REJECT
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-LOLE4ISW44XBNF3G - [0:0]
:KUBE-SEP-XZCAKXUVYACI4OUG - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A KUBE-SERVICES -d {VIP}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-LOLE4ISW44XBNF3G
-A KUBE-SVC-LOLE4ISW44XBNF3G -j KUBE-SEP-XZCAKXUVYACI4OUG
-A KUBE-SEP-XZCAKXUVYACI4OUG -p tcp -m tcp -j DNAT --to-destination {OLD}:8080
COMMIT
"""


@contextlib.asynccontextmanager
async def playing(*flags: str, before: Callable[[], object]) -> AsyncIterator[Scene]:
    """Let kube-proxy have been there, and start vipwire beside what it has left."""
    server = FakeApiServer()
    prepare(server)
    for name, vip, pod in (("web", VIP, NEW), ("idle", IDLE_VIP, "10.244.0.2")):
        server.store.put("services", service_of(name, vip))
        server.store.put("endpointslices", slice_for(name, pod))
    with stage():
        before()
        async with scene(server, *flags) as it:
            await it.daemon.heard(DONE)
            yield it


def left_by_nftables_mode() -> None:
    run("nft -f -", NFTABLES)


def left_by_iptables_mode() -> None:
    run("iptables-nft-restore --noflush", IPTABLES)


def vipwire(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "vipwire", *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def tables() -> set[str]:
    return set(run("nft list tables").splitlines())


def remove_nftables() -> None:
    run("nft delete table ip kube-proxy")


@pytest.mark.parametrize(
    ("left", "by", "mode"),
    [
        (left_by_nftables_mode, "nftables", "nftables"),
        (left_by_nftables_mode, "nftables", "iptables"),
        (left_by_iptables_mode, "iptables", "nftables"),
        (left_by_iptables_mode, "iptables", "userspace"),
    ],
)
async def test_what_kube_proxy_has_left_in_another_mode_goes_once_vipwires_rules_are_in_force(
    left: Callable[[], None], by: str, mode: str
) -> None:
    """It translates to what was there once, and refuses a Service that has endpoints now."""
    async with playing(f"--proxy-mode={mode}", before=left) as it:
        assert it.daemon.said("removed another mode's rules", left_by=by, ip_family="IPv4")
        assert await reached(VIP) == NEW
        assert await reached(IDLE_VIP) == "10.244.0.2"
        assert OLD not in run("nft list ruleset")
        if mode == "nftables":
            said = vipwire("check", f"--master={it.server.url}", "-o", "json")
            assert not [each for each in json.loads(said)["findings"] if each["what"] == "kube-proxy"]


async def test_vipwire_translates_before_a_kube_proxy_that_starts_later() -> None:
    async with playing(before=lambda: None) as _:
        assert await reached(VIP) == NEW
        left_by_nftables_mode()
        assert await reached(VIP) == NEW
        remove_nftables()
        assert await reached(VIP) == NEW


async def test_iptables_mode_takes_over_what_kube_proxys_iptables_mode_has_left() -> None:
    async with playing("--proxy-mode=iptables", before=left_by_iptables_mode) as it:
        assert it.daemon.said("synced", ip_family="IPv4")
        assert await reached(VIP) == NEW
        assert await reached(IDLE_VIP) == "10.244.0.2"
        saved = run("iptables-save")
        assert OLD not in saved
        assert "-A OUTPUT -j KUBE-FIREWALL" in saved, "the kubelet's"


def test_vipwires_cleanup_removes_kube_proxys_iptables_rules_and_leaves_its_table() -> None:
    with stage():
        left_by_nftables_mode()
        left_by_iptables_mode()
        vipwire("cleanup")
        assert "table ip kube-proxy" in tables()
        saved = run("iptables-save")
        assert "KUBE-SERVICES" not in saved
        assert "KUBE-SEP-" not in saved


async def test_the_way_back_from_nftables_mode_needs_only_nft() -> None:
    async with playing(before=lambda: None) as it:
        assert await reached(VIP) == NEW
        assert await it.daemon.terminate() == 0
        assert await reached(VIP) == NEW, "the rules stay"
        run("nft delete table ip vipwire")
        run("nft delete table ip6 vipwire")
        assert tables() == set()
