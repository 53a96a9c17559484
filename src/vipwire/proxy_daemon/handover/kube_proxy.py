"""Finds a kube-proxy in this network namespace, and its mode.

Looks for its process (a container may have its own pid namespace), then at the ports of its health check and metrics.
A vipwire proxy answers on these ports too, so callers must first check for one.
"""

import contextlib
import http.client
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vipwire.config.configuration import HEALTHZ_PORT, METRICS_PORT
from vipwire.config.yaml_values import load_yaml
from vipwire.errors import DecodeError
from vipwire.model.value import Value

_NAME: Final = "kube-proxy"
DEFAULT_MODE: Final = "iptables"
"""kube-proxy's mode if the configuration names none."""
_MODES: Final = ("iptables", "ipvs", "nftables", "userspace")
_PATIENCE: Final = 2.0
_LONGEST: Final = 64 << 10
"""Largest configuration in bytes; a usual one has 2,000."""


class KubeProxy(Value, frozen=True):
    """A running kube-proxy. `pid` is 0 if its process is invisible here, `mode` is "" if unknown."""

    pid: int = 0
    mode: str = ""

    def __str__(self) -> str:
        seen = f"process {self.pid}" if self.pid else f"port {METRICS_PORT} or {HEALTHZ_PORT} answers"
        return f"kube-proxy ({seen}{f', {self.mode} mode' if self.mode else ''})"


def find_kube_proxy(proc: Path = Path("/proc")) -> KubeProxy | None:
    """Find the kube-proxy of this network namespace; None if neither process nor port shows one."""
    pid = next(_list_processes(proc), 0)
    said = (fetch_page(METRICS_PORT, "/proxyMode") or "").strip()
    mode = said if said in _MODES else ""
    if not pid and not mode and not _is_healthz(fetch_page(HEALTHZ_PORT, "/healthz")):
        return None
    return KubeProxy(pid, mode or (_read_configured_mode(proc / str(pid)) if pid else ""))


def _list_processes(proc: Path) -> Iterator[int]:
    here = _read_network_namespace(proc / "thread-self")
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid not in (0, os.geteuid()):
                    continue  # without CAP_NET_ADMIN it cannot program the kernel
                if (folder / "comm").read_text(encoding="utf-8", errors="replace").strip() != _NAME:
                    continue
                if _read_network_namespace(folder) in (here, 0):
                    yield int(folder.name)


def _read_network_namespace(folder: Path) -> int:
    """Return a process's network namespace; 0 without permission."""
    try:
        return (folder / "ns/net").stat().st_ino
    except OSError:
        return 0


def fetch_page(port: int, path: str) -> str | None:
    """Get a page from 127.0.0.1 of this namespace; None without an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().read(1 << 16).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _is_healthz(body: str | None) -> bool:
    with contextlib.suppress(ValueError, TypeError):
        return "lastUpdated" in json.loads(body or "")
    return False


def _read_text(file: Path) -> str:
    """Read a file that another process names; raise OSError, or ValueError if it is not small and regular."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(f"{file}: not a regular file")
        content = opened.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise OSError(f"{file}: too large for a configuration")
    return content.decode()


def _read_configured_mode(folder: Path) -> str:
    """Read the mode from a process's command line or its configuration file; "" if unknown."""
    try:
        words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return ""
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if file := flags.get("config"):
        try:
            read = load_yaml(_read_text(folder / "root" / file.lstrip("/")))
        except (OSError, ValueError, DecodeError):
            return ""
        mode = read.get("mode") if isinstance(read, dict) else None
    else:
        mode = flags.get("proxy-mode")
    mode = str(mode or DEFAULT_MODE)
    return mode if mode in _MODES else ""
