"""The Debian package: installed by dpkg in a copy of this system, run, upgraded and purged there."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import debian
from scripts.interpreters import SUITES, own_architecture
from tests.project.copied_system import System

from vipwire import __version__

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
LATER = "99.0.0"
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the package, and one with another version number."""
    folder = tmp_path_factory.mktemp("packages")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "wheel"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIPWIRE_"))}
    subprocess.run(build, cwd=ROOT, env=clean, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    suite = SUITES[platform.freedesktop_os_release()["VERSION_CODENAME"]]
    package = debian.build(wheel, folder, suite, own_architecture(), "gzip")
    again = folder / "again"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(again)], check=True)
    control = again / "DEBIAN/control"
    text = control.read_text(encoding="utf-8")
    control.write_text(re.sub("^Version: .*", f"Version: {LATER}", text, flags=re.MULTILINE), encoding="utf-8")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(again), str(folder)], check=True)
    return folder


@pytest.fixture
def system(packages: Path, tmp_path: Path) -> Iterator[System]:
    found = System(tmp_path, packages)
    yield found
    found.close()


def test_installed_run_upgraded_and_purged(system: System) -> None:
    install(system)
    serve(system)
    upgrade(system)
    purge(system)


def install(system: System) -> None:
    before = system.run("find /etc /usr /lib/systemd -xdev | sort | md5sum")
    system.run(f"dpkg -i /tmp/packages/vipwire_{__version__}+deb*.deb")
    assert __version__ in system.run("cd / && vipwire version")
    assert system.run("dpkg --verify vipwire") == ""
    assert "VIPWIRE-PROXY" in system.run("zcat /usr/share/man/man8/vipwire-proxy.8.gz | head -5")
    assert system.run("test -d /run/systemd/system || echo no") == "no"
    system.run("bash -n /usr/share/bash-completion/completions/vipwire")
    assert system.run("find /etc /usr /lib/systemd -xdev | sort | md5sum") != before


def serve(system: System) -> None:
    """Start what the unit starts, and ask the kernel for what it has written."""
    system.run("ip link set lo up")
    system.run(f"cat >/etc/vipwire/services/web.yaml <<'END'\n{SERVICE}END")
    start = "sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/vipwire.service"
    system.run(
        f". /etc/vipwire/vipwire.env; command=$({start}); "
        '$(eval echo "$command") --oom-score-adj=0 >/tmp/log 2>&1 & echo $! >/tmp/pid'
    )
    ready = "curl -sf http://127.0.0.1:10256/readyz >/dev/null"
    system.run(f"for i in $(seq 300); do {ready} && exit; sleep 0.2; done; cat /tmp/log; exit 1")
    assert "10.96.0.1" in system.run("nft list table ip vipwire")
    assert "web" in system.run("vipwire status --manifests=/etc/vipwire/services --hostname-override=a")
    system.run("kill $(cat /tmp/pid)")


def upgrade(system: System) -> None:
    system.run("echo 'VIPWIRE_FLAGS=--v=4' >/etc/vipwire/vipwire.env")
    system.run(f"dpkg --force-confdef -i /tmp/packages/vipwire_{LATER}_*.deb")
    assert system.run("dpkg-query -W -f '${Version}' vipwire") == LATER
    assert system.run("cat /etc/vipwire/vipwire.env") == "VIPWIRE_FLAGS=--v=4", "its owner's file stays"
    assert "10.96.0.1" in system.run("nft list table ip vipwire"), "the rules outlive an upgrade"


def purge(system: System) -> None:
    assert "apt-get remove vipwire" in system.run("! vipwire uninstall")
    assert "rules: removed" in system.run("dpkg -r vipwire")
    system.run("test -e /etc/vipwire/vipwire.env && ! test -e /usr/bin/vipwire && ! nft list table ip vipwire")
    system.run("mkdir -p /var/lib/vipwire")
    assert "/var/lib/vipwire is left" in system.run("dpkg -P vipwire")
    left = system.run("find /etc/vipwire /usr/lib/vipwire /usr/share/doc/vipwire 2>/dev/null; true")
    assert left.split() == ["/etc/vipwire", "/etc/vipwire/services", "/etc/vipwire/services/web.yaml"]
