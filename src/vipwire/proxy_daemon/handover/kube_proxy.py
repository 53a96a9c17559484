"""Finds a kube-proxy in this network namespace, its mode and its configuration.

Looks for its process (a container may have its own pid namespace), then at the ports of its health check and metrics.
A vipwire proxy answers on these ports too, so callers must first check for one. The configuration comes from the page
/configz, otherwise from the command line and the file named there. An empty mode is kube-proxy's default, iptables.
"""

import contextlib
import http.client
import json
import os
import stat
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Final

from vipwire.config.configuration import HEALTHZ_PORT, METRICS_PORT, Config
from vipwire.config.file import read_config
from vipwire.config.flags import build_config, parse_flags
from vipwire.config.yaml_values import load_yaml
from vipwire.errors import ConfigError
from vipwire.model.value import Value
from vipwire.proxy_daemon.handover.configured import DEFAULT_MODE, Configured

_NAME: Final = "kube-proxy"
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
    pid = next(_processes(proc), 0)
    said = (page(METRICS_PORT, "/proxyMode") or "").strip()
    mode = said if said in _MODES else ""
    if not pid and not mode and not _is_healthz(page(HEALTHZ_PORT, "/healthz")):
        return None
    return KubeProxy(pid, mode or (_configured_mode(proc / str(pid)) if pid else ""))


def _processes(proc: Path) -> Iterator[int]:
    here = _namespace(proc / "thread-self")
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if folder.stat().st_uid not in (0, os.geteuid()):
                    continue  # without CAP_NET_ADMIN it cannot program the kernel
                if (folder / "comm").read_text(encoding="utf-8", errors="replace").strip() != _NAME:
                    continue
                if _namespace(folder) in (here, 0):
                    yield int(folder.name)


def _namespace(folder: Path) -> int:
    """Return a process's network namespace; 0 without permission."""
    try:
        return (folder / "ns/net").stat().st_ino
    except OSError:
        return 0


def page(port: int, path: str) -> str | None:
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


def _text(file: Path) -> str:
    """Read a file that another process names; raise OSError, or ValueError if it is not small and regular."""
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(f"{file}: not a regular file")
        content = opened.read(_LONGEST + 1)
    if len(content) > _LONGEST:
        raise OSError(f"{file}: too large for a configuration")
    return content.decode()


def _configured_mode(folder: Path) -> str:
    """Read the mode from a process's command line or its configuration file; "" if unknown."""
    try:
        words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return ""
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    if file := flags.get("config"):
        try:
            read = load_yaml(_text(folder / "root" / file.lstrip("/")))
        except (OSError, ValueError):
            return ""
        mode = read.get("mode") if isinstance(read, dict) else None
    else:
        mode = flags.get("proxy-mode")
    mode = str(mode or DEFAULT_MODE)
    return mode if mode in _MODES else ""


_CONFIGZ: Final = "kubeproxy.config.k8s.io"
_FILES: Final = ("config", "kubeconfig")


def find_configuration(running: KubeProxy | None, proc: Path = Path("/proc")) -> Configured | None:
    """Find the configuration of the kube-proxy that runs here; None if no source has one."""
    if running is None:
        return None
    return next(_find_configurations(running, proc), None)


def _find_configurations(running: KubeProxy, proc: Path) -> Iterator[Configured]:
    if said := page(METRICS_PORT, "/configz"):
        where = f"http://127.0.0.1:{METRICS_PORT}/configz"
        with contextlib.suppress(ConfigError):
            yield Configured(where, from_configz(said, where))
    if running.pid:
        with contextlib.suppress(ConfigError, OSError):
            yield of_process(proc / str(running.pid))


def from_configz(text: str, where: str) -> Config:
    """Parse the page /configz. Raise ConfigError for any other content or an unknown version."""
    try:
        inner = json.loads(text)[_CONFIGZ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: not a configuration of kube-proxy") from error
    return read_config(json.dumps(inner), where).config


def of_process(folder: Path) -> Configured:
    """Read a process's command line and its configuration file, below the process's root.

    Raise ConfigError or OSError.
    """
    words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    given = parse_flags([*dropwhile(lambda word: not word.startswith("-"), filter(None, words))])
    named = given.get("config", "")
    if named:
        text = (folder / "root" / str(named).lstrip("/")).read_text(encoding="utf-8", errors="replace")
        return Configured(f"{named} of process {folder.name}", read_config(text, str(named)).config)
    config = build_config({name: value for name, value in given.items() if name not in _FILES}).config
    return Configured(f"the command line of process {folder.name}", config)


def from_config_map(document: object, where: str) -> Config:
    """Parse the ConfigMap that kubeadm writes. Raise ConfigError if it holds no configuration."""
    data = document.get("data") if isinstance(document, dict) else None
    for text in (data or {}).values() if isinstance(data, dict) else ():
        if "KubeProxyConfiguration" in str(text):
            return read_config(str(text), where).config
    raise ConfigError(f"{where}: contains no KubeProxyConfiguration")
