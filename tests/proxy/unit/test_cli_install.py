"""`vipwire install systemd`: units that systemd takes without a word, and what the programs tell systemd."""

import asyncio
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire.cli.install import SERVICES, render_unit, require_visible
from vipwire.cli.main import main
from vipwire.errors import VipwireError
from vipwire.process_lifecycle import systemd

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="asks systemd-analyze, which is not installed"
)
EXPOSURE = 45
"""In tenths; systemd-analyze calls 40 to 50 medium, and 96 what a unit without any of this comes to."""


@needs_systemd
def test_systemd_takes_the_units_without_a_word_and_what_they_may_is_bounded(tmp_path: Path) -> None:
    paths = []
    for name in SERVICES:
        path = tmp_path / f"vipwire-{name}.service"
        path.write_text(render_unit(name, shutil.which("true") or "/bin/true"))
        paths.append(str(path))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    for each in paths:
        said = subprocess.run([*command, each], capture_output=True, text=True, check=False)
        assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("name", ["ingress", "gateway"])
def test_haproxy_may_go_into_its_empty_folder(name: str) -> None:
    filters = [line for line in render_unit(name, "vipwire").splitlines() if line.startswith("SystemCallFilter=")]
    assert "SystemCallFilter=@system-service chroot" in filters
    assert not any("@mount" in line for line in filters if "~" in line)  # chroot is one of these, and it would count


def test_a_units_flags_are_never_overwritten_and_the_unit_is(tmp_path: Path) -> None:
    command = ["install", "systemd", "up", "dns", "--root", str(tmp_path)]
    first = CliRunner().invoke(main, command)
    assert first.exit_code == 0, first.output
    flags, written = tmp_path / "etc/vipwire/up.env", tmp_path / "etc/systemd/system/vipwire-up.service"
    flags.write_text("VIPWIRE_UP_FLAGS=--no-dns\n")
    written.write_text("old")
    assert CliRunner().invoke(main, command).exit_code == 0
    assert flags.read_text() == "VIPWIRE_UP_FLAGS=--no-dns\n"
    assert "EnvironmentFile=-/etc/vipwire/up.env" in written.read_text()
    assert "$VIPWIRE_UP_FLAGS" in written.read_text()


@pytest.mark.parametrize("path", ["/tmp/vipwire/bin/vipwire", "/var/tmp/venv"])  # noqa: S108  # nothing is there
def test_a_program_that_services_would_not_find_is_not_installed(path: str) -> None:
    require_visible("/opt/vipwire/bin/vipwire", "/usr")
    with pytest.raises(VipwireError, match="services cannot read"):
        require_visible("/usr/bin/vipwire", path)


@pytest.mark.parametrize("name", SERVICES)
def test_the_command_takes_the_flags_that_it_is_installed_with(name: str) -> None:
    said = CliRunner().invoke(main, [name, "--help"]).output
    for flag in SERVICES[name].flags.split():
        assert flag.partition("=")[0] in said


async def test_systemd_hears_that_it_is_ready_and_that_it_lives(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
        systemd.notify(systemd.READY, environ)
        assert listener.recv(64) == b"READY=1"
        alive = asyncio.ensure_future(systemd.keep_alive(environ))
        await asyncio.sleep(0)
        alive.cancel()
        assert listener.recv(64) == b"WATCHDOG=1"
    systemd.notify(systemd.READY, environ)  # nobody listens any more
    systemd.notify(systemd.READY, {})
    assert systemd.read_watchdog_seconds({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}) == 0
    assert systemd.read_watchdog_seconds({}) == 0
