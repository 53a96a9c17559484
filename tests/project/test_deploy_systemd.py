"""The systemd unit: what systemd itself says of it, and whether vipwire takes its command line."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.project.deployed import DEPLOY

from vipwire.config.flags import build_config, parse_flags

FOLDER = DEPLOY / "systemd"
UNIT = (FOLDER / "vipwire.service").read_text(encoding="utf-8")
EXPOSURE = 25
"""In tenths: systemd-analyze calls 22 OK, and 96 what a unit without any of this comes to."""
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="asks systemd-analyze, which is not installed"
)


def settings(section: str) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read_string(UNIT)
    return dict(parser[section])


def environment() -> dict[str, str]:
    text = (FOLDER / "vipwire.env").read_text(encoding="utf-8")
    return dict(re.findall(r"^([A-Z_]+)=(.*)$", text, re.MULTILINE))


@needs_systemd
def test_systemd_takes_the_unit_without_a_word(tmp_path: Path) -> None:
    # systemd looks whether the program is there, which on this machine it is not.
    unit = tmp_path / "vipwire.service"
    unit.write_text(UNIT.replace("/opt/vipwire/bin/vipwire", shutil.which("true") or "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
def test_what_the_service_could_do_is_little() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={EXPOSURE}"]
    done = subprocess.run([*command, str(FOLDER / "vipwire.service")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_vipwire_takes_the_command_line_with_the_environment_file() -> None:
    words = shlex.split(settings("Service")["ExecStart"])
    flags = environment()["VIPWIRE_FLAGS"].split()
    given = parse_flags([*(word for word in words[2:] if word != "$VIPWIRE_FLAGS"), *flags])
    config, warnings = build_config(given)
    assert words[:2] == ["/opt/vipwire/bin/vipwire", "proxy"]
    assert "$VIPWIRE_FLAGS" in words, "a word of its own, which systemd splits at blanks"
    assert config.manifests == ("/etc/vipwire/services",)
    assert config.sync.masquerade_all
    assert not warnings


def test_the_machines_settings_can_be_written_and_netlink_be_spoken() -> None:
    service = settings("Service")
    assert service["ProtectKernelTunables"] == "no"
    assert "CAP_NET_ADMIN" in service["CapabilityBoundingSet"].split()
    assert {"AF_NETLINK", "AF_INET", "AF_INET6", "AF_UNIX"} == set(service["RestrictAddressFamilies"].split())
    assert service["Restart"] == "always", "a node without a proxy keeps its rules and loses touch with the cluster"
    assert "ExecStop" not in service, "the rules stay"
    assert service["KillMode"] == "process", "so do the relays of userspace mode"
