"""A mode is one folder and one line: a toy mode passes through `proxy`, `check`, `status`, `explain` and `cleanup`.

Nothing in src/ knows it. What it does not say (an explainer, rules of iptables, what it leaves behind) is not missed.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.daemon import Daemon
from tests.fakes.own_network import own_network, run
from tests.fakes.toy_mode import FOLDER
from tests.proxy.unit.inspected import example, make_config

pytestmark = pytest.mark.kernel
TOY = "tests.fakes.toy_mode"


@pytest.fixture(autouse=True)
def _network() -> Iterator[None]:
    with own_network():
        run("ip link add node type veth peer name wire")
        run("ip link set node up")
        run("ip address add 192.0.2.10/24 dev node")
        yield


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "toy").mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "VIPWIRE_FLAGS"}
    return {**clean, FOLDER: str(tmp_path / "toy")}


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    (tmp_path / "manifests").mkdir()
    make_config(tmp_path / "manifests", example())
    folders = (f"--manifests={tmp_path / 'manifests'}", f"--state-dir={tmp_path / 'state'}")
    return [*folders, "--hostname-override=node-1"]


def vipwire(environ: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", TOY, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def serve(environ: dict[str, str], *flags: str) -> Daemon:
    """Run a proxy until found no rules of other modes; return it with its log."""

    async def scenario() -> Daemon:
        async with Daemon(*flags, environ=environ, program=TOY) as daemon:
            await daemon.heard("found no rules of other modes")
            assert await daemon.terminate() == 0
            return daemon

    return asyncio.run(scenario())


def test_a_toy_mode_is_proxied_checked_shown_and_cleaned_up(
    tmp_path: Path, environ: dict[str, str], flags: list[str]
) -> None:
    run("iptables-nft-restore --noflush", "*nat\n:KUBE-SVC-A - [0:0]\nCOMMIT\n")
    daemon = serve(environ, "--proxy-mode=toy", *flags)
    assert daemon.said("starting", mode="toy")
    assert daemon.said("kernel setting changed", name="net.ipv4.conf.all.log_martians")
    assert daemon.said("removed another mode's rules", left_by="iptables")
    held = json.loads((tmp_path / "toy/IPv4.json").read_text())
    assert held["node"] == "node-1"
    assert "Forward" in held.values()

    toy = ("--proxy-mode=toy", *flags)
    again = serve(environ, *toy)
    assert again.said("synced", ip_family="IPv4")[0]["added"] == 0, "a new process finds an empty difference"

    status = json.loads(vipwire(environ, "status", *toy, "-o", "json").stdout)
    assert status["mode"] == "toy"
    assert status["services"]
    explained = vipwire(environ, "explain", "10.96.0.10:80", *toy)
    assert explained.returncode in (0, 1), explained.stderr
    checked = json.loads(vipwire(environ, "check", *toy, "-o", "json").stdout)
    found = {(each["area"], each["what"]): each for each in checked["findings"]}
    assert found["mode", "toy (chosen)"]["level"] == "ok"
    assert "toy-tool" in found["tool", "not there"]["said"]

    cleaned = vipwire(environ, "cleanup")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not list((tmp_path / "toy").iterdir())


def test_where_it_cannot_run_that_is_said_and_it_falls_back_as_it_says(
    environ: dict[str, str], flags: list[str]
) -> None:
    del environ[FOLDER]
    refused = vipwire(environ, "proxy", "--proxy-mode=toy", *flags)
    assert refused.returncode == 1
    assert "toy mode needs a folder" in refused.stderr
    daemon = serve(environ, "--proxy-mode=toy", "--proxy-mode-fallback", *flags)
    assert daemon.said("falling back", mode="toy", to="nftables")
    assert daemon.said("starting", mode="nftables")


def test_a_mode_that_is_not_used_is_not_imported(flags: list[str]) -> None:
    code = (
        "import sys; from vipwire.config.flags import build_config, parse_flags; "
        "from vipwire.proxy_daemon.start.modes import build_modes; from vipwire.model.net import Family; "
        "import vipwire.proxy_daemon.run; "
        f"config = build_config(parse_flags({['--proxy-mode=nftables', *flags]!r})).config; "
        "build_modes(config, [Family.IPV4]); "
        "print(sorted(name for name in sys.modules if name.startswith('vipwire.modes.') and "
        "name.rsplit('.', 1)[1] in ('driver', 'kernel', 'explainer')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['vipwire.modes.nftables.driver', 'vipwire.modes.nftables.kernel']"
