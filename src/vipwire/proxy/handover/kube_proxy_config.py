"""Reads how a kube-proxy of this machine is configured: its page /configz, its command line, or the file named there.

What it runs with comes first: /configz has flags and file together. A blank mode is kube-proxy's default, iptables.
"""

import contextlib
import json
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Final

from vipwire.config.configuration import METRICS_PORT, Config
from vipwire.config.file import read_config
from vipwire.config.flags.parse import build_config, parse_flags
from vipwire.errors import ConfigError
from vipwire.proxy.handover.configured import Configured
from vipwire.proxy.handover.kube_proxy import KubeProxy, page

_CONFIGZ: Final = "kubeproxy.config.k8s.io"
_FILES: Final = ("config", "kubeconfig")


def configured(running: KubeProxy | None, proc: Path = Path("/proc")) -> Configured | None:
    """Find the configuration of the kube-proxy that runs here; None if nothing tells."""
    if running is None:
        return None
    return next(_found(running, proc), None)


def _found(running: KubeProxy, proc: Path) -> Iterator[Configured]:
    if said := page(METRICS_PORT, "/configz"):
        where = f"http://127.0.0.1:{METRICS_PORT}/configz"
        with contextlib.suppress(ConfigError):
            yield Configured(where, from_configz(said, where))
    if running.pid:
        with contextlib.suppress(ConfigError, OSError):
            yield of_process(proc / str(running.pid))


def from_configz(text: str, where: str) -> Config:
    """Read the page /configz. Raise ConfigError if it is none, or of a version that writes it otherwise."""
    try:
        inner = json.loads(text)[_CONFIGZ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: is no configuration of kube-proxy") from error
    return read_config(json.dumps(inner), where).config


def of_process(folder: Path) -> Configured:
    """Read a process's command line and the file that it names, below its own root. Raise ConfigError or OSError."""
    words = (folder / "cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    given = parse_flags([*dropwhile(lambda word: not word.startswith("-"), filter(None, words))])
    named = given.get("config", "")
    if named:
        text = (folder / "root" / str(named).lstrip("/")).read_text(encoding="utf-8", errors="replace")
        return Configured(f"{named} of process {folder.name}", read_config(text, str(named)).config)
    config = build_config({name: value for name, value in given.items() if name not in _FILES}).config
    return Configured(f"the command line of process {folder.name}", config)


def from_config_map(document: object, where: str) -> Config:
    """Read the ConfigMap as kubeadm writes it. Raise ConfigError if it holds no configuration."""
    data = document.get("data") if isinstance(document, dict) else None
    for text in (data or {}).values() if isinstance(data, dict) else ():
        if "KubeProxyConfiguration" in str(text):
            return read_config(str(text), where).config
    raise ConfigError(f"{where}: holds no KubeProxyConfiguration")
