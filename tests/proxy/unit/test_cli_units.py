"""The units of vipwire at an upgrade: which are restarted, how, and in which order."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from vipwire.cli import install, units
from vipwire.cli.main import main
from vipwire.cli.units import ORDER, restart_all

SYSTEMCTL = """\
#!/bin/sh
# A systemd with {running} running: each new process has the next number.
echo "$*" >>{folder}/asked
case $1 in
show)
    for unit; do :; done
    case " {running} " in
    *" ${{unit%.service}} "*) echo "ActiveState=active"; echo "MainPID=$(wc -l <{folder}/asked)" ;;
    *) echo "ActiveState=inactive"; echo "MainPID=0" ;;
    esac
    echo Result=success ;;
esac
"""


def asked(folder: Path, *running: str) -> list[str]:
    """Upgrade on a machine that runs these units; return what systemctl was asked, without questions."""
    program = folder / "systemctl"
    program.write_text(SYSTEMCTL.format(running=" ".join(running), folder=folder))
    program.chmod(0o755)
    restart_all()
    return [line for line in (folder / "asked").read_text().splitlines() if not line.startswith("show ")]


def test_running_units_are_restarted_in_order_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert asked(tmp_path, "vipwire-dns", "vipwire-up") == [
        "daemon-reload",
        "try-restart vipwire-up",
        "try-restart vipwire-dns",
    ]


def test_a_controller_is_replaced_without_its_haproxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert asked(tmp_path, *ORDER)[-2:] == [
        "kill --kill-who=main --signal=KILL vipwire-ingress",
        "kill --kill-who=main --signal=KILL vipwire-gateway",
    ]


JOURNAL = """\
#!/bin/sh
case $* in
*--sync*) ;;
*=vipwire-ingress.service) echo "error: no API server: start one" ;;
*=vipwire-dns.service) echo 'ts=1 level=warning msg="cannot read objects" error="Connection refused"' ;;
esac
"""


@pytest.mark.parametrize("words", [("ingress", "dns", "--now"), ("--upgrade",)])
def test_a_unit_that_does_not_start_is_told_with_its_programs_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    systemctl = """\
#!/bin/sh
case $1 in
*restart) echo 'Job failed because the control process exited. See "journalctl -xeu".' >&2; exit 1 ;;
show) echo ActiveState=activating ;;
esac
"""
    for name, content in (("systemctl", systemctl), ("journalctl", JOURNAL)):
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(install, "systemd_runs", lambda: True)
    done = CliRunner().invoke(main, ["install", "systemd", *words, "--root", str(tmp_path)])
    assert "vipwire-ingress is not ready: no API server: start one; systemd keeps trying" in done.output
    assert 'error="Connection refused"; systemd keeps trying, with the flags of /etc/vipwire/dns.env' in done.output
    assert ("Job failed" in done.output) == ("--upgrade" in words)  # the proxy and others wrote no line


def test_an_upgrade_writes_the_existing_units_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    asked(tmp_path)
    unit = tmp_path / "etc/systemd/system/vipwire-join.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("KillMode=mixed of an older version\n")
    done = CliRunner().invoke(main, ["install", "systemd", "--upgrade", "--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "ExecStart=" in unit.read_text()
    assert [path.name for path in unit.parent.iterdir()] == ["vipwire-join.service"]


def test_without_a_name_the_command_lists_the_units() -> None:
    done = CliRunner().invoke(main, ["install", "systemd"])
    assert done.exit_code == 2
    assert "name units: up, join, ingress, gateway, dns" in str(done.exception or done.output) + done.output


def test_a_removal_without_the_proxys_unit_disables_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After pip there is no vipwire.service."""
    program = tmp_path / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\n[ $1 = show ] && echo LoadState=not-found\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(units, "systemd_runs", lambda: True)
    monkeypatch.setattr(units, "FOLDER", tmp_path)
    units.remove_all()
    assert {line.split()[0] for line in (tmp_path / "asked").read_text().splitlines()} == {"show"}
