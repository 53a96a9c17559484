"""Finds the configuration of a running kube-proxy, for `vipwire check --leave-ipvs`.

The page /configz has it, otherwise the command line and the file named there.
"""

import contextlib
import json
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Final, NamedTuple

from vipwire.config.configuration import METRICS_PORT, Config
from vipwire.config.file import read_config
from vipwire.config.flags import build_config, parse_flags
from vipwire.errors import ConfigError
from vipwire.proxy_daemon.handover.kube_proxy import DEFAULT_MODE, KubeProxy, fetch_page


class Configured(NamedTuple):
    """A kube-proxy's configuration, and the place where vipwire found it."""

    where: str
    config: Config

    @property
    def mode(self) -> str:
        return self.config.mode or DEFAULT_MODE


_CONFIGZ: Final = "kubeproxy.config.k8s.io"
_FILES: Final = ("config", "kubeconfig")


def find_configuration(running: KubeProxy | None, proc: Path = Path("/proc")) -> Configured | None:
    """Find the configuration of the kube-proxy that runs here; None if no source has one."""
    if running is None:
        return None
    return next(_find_configurations(running, proc), None)


def _find_configurations(running: KubeProxy, proc: Path) -> Iterator[Configured]:
    if said := fetch_page(METRICS_PORT, "/configz"):
        where = f"http://127.0.0.1:{METRICS_PORT}/configz"
        with contextlib.suppress(ConfigError):
            yield Configured(where, parse_configz(said, where))
    if running.pid:
        with contextlib.suppress(ConfigError, OSError):
            yield read_process_configuration(proc / str(running.pid))


def parse_configz(text: str, where: str) -> Config:
    """Parse the page /configz. Raise ConfigError for any other content or an unknown version."""
    try:
        inner = json.loads(text)[_CONFIGZ]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{where}: not a configuration of kube-proxy") from error
    return read_config(json.dumps(inner), where).config


def read_process_configuration(folder: Path) -> Configured:
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


def parse_config_map(document: object, where: str) -> Config:
    """Parse the ConfigMap that kubeadm writes. Raise ConfigError if it holds no configuration."""
    data = document.get("data") if isinstance(document, dict) else None
    for text in (data or {}).values() if isinstance(data, dict) else ():
        if "KubeProxyConfiguration" in str(text):
            return read_config(str(text), where).config
    raise ConfigError(f"{where}: contains no KubeProxyConfiguration")
