"""The systemd units that run vipwire on this machine: restarted by an upgrade, removed by `vipwire uninstall`."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from vipwire.errors import VipwireError
from vipwire.terminal.output import print_line, print_warning

FOLDER: Final = Path("/etc/systemd/system")
ORDER: Final = (*("vipwire", "vipwire-up", "vipwire-join", "vipwire-dns", "vipwire-ingress", "vipwire-gateway"),)
"""The units in the order of an upgrade: each finds the one before at work."""
_HAPROXY: Final = ("vipwire-ingress", "vipwire-gateway")
_PATIENCE: Final = 60.0
"""Seconds that an upgrade waits for a unit. Afterwards systemd goes on starting the unit."""


def systemd_runs() -> bool:
    return shutil.which("systemctl") is not None and os.path.isdir("/run/systemd/system")  # noqa: PTH112  # as sd_booted(3) asks


def systemctl(*words: str, patience: float | None = None) -> str:
    """Return the output of systemctl; raise VipwireError if it fails."""
    found = shutil.which("systemctl")
    if found is None:
        raise VipwireError("systemctl: not found")
    try:
        done = subprocess.run([found, *words], capture_output=True, text=True, check=False, timeout=patience)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise VipwireError(
            f"systemctl {' '.join(words)}: not finished after {patience:.0f} s; systemd continues"
        ) from None
    if done.returncode:
        raise VipwireError(f"systemctl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def list_written_units(root: Path = Path("/")) -> list[str]:
    """Return the units that `vipwire install systemd` wrote, in the order of an upgrade."""
    folder = root / FOLDER.relative_to("/")
    return [name for name in ORDER[1:] if (folder / f"{name}.service").exists()]


def restart_all() -> None:
    """Restart the running units, each when the one before is ready.

    The rules stay in the kernel while a proxy is away. HAProxy runs on while its controller is away: SIGKILL ends the
    controller without its HAProxy, systemd starts the new controller, and the controller takes over the HAProxy.
    """
    systemctl("daemon-reload")
    for name in ORDER:
        state, _, pid = _read_unit_state(name)
        if state not in ("active", "activating", "reloading"):
            continue
        try:
            if name in _HAPROXY and state == "active":
                _restart_unit(name, pid)
            else:
                systemctl("try-restart", name, patience=_PATIENCE)
        except VipwireError as error:
            print_warning(_why_not_ready(name) or str(error))
            continue
        print_line(f"{name}: restarted")


def start_units(names: Sequence[str]) -> None:
    """Enable units, and start them or restart those that run. Raise VipwireError with each failed program's error."""
    systemctl("daemon-reload")
    systemctl("enable", "--quiet", *names)
    try:
        systemctl("restart", *names, patience=_PATIENCE)
    except VipwireError as error:
        raise VipwireError("\n".join(filter(None, map(_why_not_ready, names))) or str(error)) from error


def _why_not_ready(name: str) -> str:
    """Return the last line that the program of a waiting or failed unit wrote; "" if there is none."""
    found = shutil.which("journalctl")
    if found is None or _read_unit_state(name)[0] == "active":
        return ""
    subprocess.run([found, "--sync"], capture_output=True, check=False)  # noqa: S603
    # this field, unlike --unit, leaves out systemd's own lines
    command = [found, "--quiet", "--no-pager", "--output=cat", "--lines=1", f"_SYSTEMD_UNIT={name}.service"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
    flags = f"/etc/vipwire/{name.removeprefix('vipwire-')}.env"
    return (
        said
        and f"{name} is not ready: {said.removeprefix('error: ')}; systemd keeps trying, with the flags of {flags}"
    )


def _restart_unit(name: str, pid: str) -> None:
    systemctl("kill", "--kill-who=main", "--signal=KILL", name)
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        state, result, now = _read_unit_state(name)
        if state == "active" and now not in (pid, "0"):
            return
        if state == "failed":
            raise VipwireError(f"{name}: failed ({result}): systemctl status {name}")
        time.sleep(0.1)
    raise VipwireError(f"{name}: not ready after {_PATIENCE:.0f} s; systemd continues")


def _read_unit_state(name: str) -> tuple[str, str, str]:
    """Return a unit's ActiveState, Result and MainPID."""
    said = systemctl("show", "--property=ActiveState,Result,MainPID", f"{name}.service")
    found = dict(line.partition("=")[::2] for line in said.splitlines())
    return found.get("ActiveState", ""), found.get("Result", ""), found.get("MainPID", "0")


def remove_all() -> None:
    """Stop and disable the units, last the proxy, and remove those that `vipwire install systemd` wrote."""
    ours = list_written_units()
    if systemd_runs():
        for name in reversed(ORDER):
            if _read_unit_state(name)[0] in ("inactive", ""):
                continue
            systemctl("stop", name)
            print_line(f"{name}: stopped")
        for name in (*ours, *_list_enabled_units()):
            systemctl("disable", "--quiet", name)
    for name in ours:
        for link in FOLDER.glob(f"*.wants/{name}.service"):
            link.unlink()
        (FOLDER / f"{name}.service").unlink()
        print_line(f"{FOLDER / name}.service: removed")


def _list_enabled_units() -> list[str]:
    """Return the proxy's unit if it is there: its file comes with the installation."""
    state = systemctl("show", "--property=LoadState", "vipwire.service")
    return ["vipwire"] if state.strip() == "LoadState=loaded" else []
