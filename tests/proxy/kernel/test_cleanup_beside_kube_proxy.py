"""`vipwire cleanup` on a node where kube-proxy runs again: what is kube-proxy's by now stays, vipwire's own goes."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import prepare, scene, service_of, slice_for, stage
from tests.fakes.own_network import run
from tests.proxy.kernel.test_leftovers import KUBE_PROXYS_TABLE, of_kube_proxy, write

from vipwire.proxy_daemon.handover.kube_proxy import find_kube_proxy

pytestmark = pytest.mark.kernel
WEB, POD = "10.96.0.1", "10.244.0.1"
SERVE = """
import http.server, json, sys
class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = pages[self.path].encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
port, pages = int(sys.argv[1]), json.loads(sys.argv[2])
server = http.server.HTTPServer(("127.0.0.1", port), Pages) if port else None
print(flush=True)
server.serve_forever() if server else sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with stage():
        yield


@contextmanager
def kube_proxy(program: Path, *flags: str, port: int = 0, pages: dict[str, str] | None = None) -> Iterator[int]:
    """Run what has kube-proxy's name, if `program` has, and answers like it."""
    if not program.exists():
        program.symlink_to(sys.executable)
    command = [str(program), "-c", SERVE, str(port), json.dumps(pages or {}), *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def vipwire_was_here(mode: str) -> None:
    """Run a proxy until its first sync, and end it."""
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", WEB, loadBalancerSourceRanges=["192.0.2.0/24"]))
    server.store.put("endpointslices", slice_for("web", POD))

    async def scenario() -> None:
        async with scene(server, f"--proxy-mode={mode}") as it:
            await it.daemon.heard("found no rules of other modes")
            assert await it.daemon.terminate() == 0

    asyncio.run(scenario())


def cleanup(*flags: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "vipwire", "cleanup", *flags],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "VIPWIRE_FLAGS"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def saved() -> str:
    text = run("iptables-nft-save") + run("ip6tables-nft-save")
    return re.sub(r" \[\d+:\d+\]|^#.*$", "", text, flags=re.MULTILINE)


def kube_proxy_writes() -> None:
    """Write what kube-proxy's iptables mode does, over whatever is there."""
    write("nft", of_kube_proxy())


def test_chains_of_a_running_kube_proxy_stay_and_those_that_only_vipwire_makes_go(tmp_path: Path) -> None:
    kube_proxy_writes()
    alone = run("iptables-nft-save")
    run("nft flush ruleset")
    vipwire_was_here("iptables")
    assert "KUBE-CLUSTER-IPS" in saved()
    kube_proxy_writes()
    with kube_proxy(tmp_path / "kube-proxy", "--proxy-mode=iptables") as pid:
        said = cleanup()
        assert f"kube-proxy (process {pid}, iptables mode) runs here" in said
        assert "vipwire cleanup --all" in said
        left = saved()
        for own in ("KUBE-CLUSTER-IPS", "KUBE-NO-SUCH-PORT", "KUBE-RANGES"):
            assert own not in left
        rules = {line for line in alone.splitlines() if line.startswith("-A")}
        assert rules
        assert rules <= set(left.splitlines()), "every rule of kube-proxy's is as it was"
        canaries = [line for line in alone.splitlines() if "KUBE-PROXY-CANARY" in line]
        assert left.count("KUBE-PROXY-CANARY") >= len(canaries) == 3, "for whose loss kube-proxy looks, in each table"
        assert saved() == left
        said = cleanup()
        assert "removed" not in said, "and a second time there is nothing to do"
        cleanup("--all")
        assert "KUBE-" not in saved()


def test_a_table_and_other_modes_go_beside_a_kube_proxy_that_only_its_ports_tell_of(tmp_path: Path) -> None:
    vipwire_was_here("nftables")
    write("nft", "*nat\n:KUBE-PORTALS-CONTAINER - [0:0]\n-A PREROUTING -j KUBE-PORTALS-CONTAINER\nCOMMIT\n")
    kube_proxy_writes()
    with kube_proxy(tmp_path / "other", port=10249, pages={"/proxyMode": "iptables"}):
        said = cleanup()
    assert "port 10249 or 10256 answers, iptables mode" in said
    assert "table ip vipwire" not in run("nft list tables")
    assert "KUBE-PORTALS" not in saved()
    assert "KUBE-SVC-LOLE4ISW44XBNF3G" in saved()


def test_what_a_kube_proxy_in_nftables_mode_does_not_have_goes_and_its_table_stays(tmp_path: Path) -> None:
    vipwire_was_here("iptables")
    run("nft -f -", KUBE_PROXYS_TABLE)
    with kube_proxy(tmp_path / "kube-proxy", "--proxy-mode=nftables"):
        cleanup()
    assert "KUBE-" not in saved()
    assert "table ip kube-proxy" in run("nft list tables")


def test_who_does_not_say_its_mode_keeps_what_it_may_have(tmp_path: Path) -> None:
    vipwire_was_here("iptables")
    page = {"/healthz": json.dumps({"lastUpdated": "2026-01-01", "nodeEligible": True})}
    with kube_proxy(tmp_path / "other", port=10256, pages=page):
        cleanup()
    assert "KUBE-SERVICES" in saved()
    assert "KUBE-CLUSTER-IPS" not in saved()
    cleanup()
    assert "KUBE-" not in saved(), "and nobody is there any more"


def test_a_kube_proxys_mode_is_found(tmp_path: Path) -> None:
    assert find_kube_proxy() is None
    (tmp_path / "config.conf").write_text("kind: KubeProxyConfiguration\nmode: ipvs\n")
    program = tmp_path / "kube-proxy"
    file = f"--config={tmp_path}/config.conf"
    for flags, mode in (((), "iptables"), (("--proxy-mode=ipvs",), "ipvs"), ((file,), "ipvs")):
        with kube_proxy(program, *flags) as pid:
            found = find_kube_proxy()
            assert found is not None
            assert (found.pid, found.mode) == (pid, mode)
    with kube_proxy(program, "--proxy-mode=iptables", port=10249, pages={"/proxyMode": "nftables"}):
        found = find_kube_proxy()
        assert found is not None
        assert found.mode == "nftables", "what it says itself counts more"
    with kube_proxy(program), stage():
        assert find_kube_proxy() is None, "one of another network namespace"
