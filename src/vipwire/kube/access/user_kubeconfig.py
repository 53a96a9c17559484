"""Chooses the kubeconfig of a command when no flag names one: the one that kubectl would take.

    $KUBECONFIG  ▸  ~/.kube/config  ▸  the Pod's own  ▸  that of a `vipwire up` on this machine

$KUBECONFIG may name several files, which are one kubeconfig then; those that are not there are passed over. The proxy
takes neither, as kube-proxy does not: what a node serves must not depend on somebody's shell.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from vipwire.errors import ConfigError
from vipwire.kube.access.access import Access, access_of
from vipwire.kube.access.kubeconfig import parse_kubeconfigs
from vipwire.kube.access.tls import read_text

FOLDER: Final = "/var/lib/vipwire"
"""Where `vipwire up` keeps its kubeconfig, unless $VIPWIRE_DATA_DIR says another place."""


class Found(NamedTuple):
    """A kubeconfig, in one file or several, and in words what names it."""

    paths: tuple[Path, ...]
    by: str

    def access(self, tell: Callable[[str], object], environ: Mapping[str, str] = os.environ) -> Access:
        """Find out how to reach its server, and tell in a line which it is; raise ConfigError."""
        selected = parse_kubeconfigs((read_text(path, self.by), path) for path in self.paths)
        access = access_of(selected, None, environ)
        tell(f"note: asking {access.server}, which {selected.file} names ({self.by})")
        return access


def kubectls(environ: Mapping[str, str] = os.environ) -> Found | None:
    """Find the kubeconfig that kubectl would take; None if there is none. Raise ConfigError for one that is lost."""
    if named := [Path(text) for text in environ.get("KUBECONFIG", "").split(os.pathsep) if text]:
        there = tuple(path for path in dict.fromkeys(named) if path.is_file())
        if not there:
            listed = ", ".join(map(str, named))
            raise ConfigError(f"$KUBECONFIG: there is no file {listed}; unset it, or name another kubeconfig")
        return Found(there, "$KUBECONFIG")
    own = Path(environ.get("HOME", "/"), ".kube/config")
    return Found((own,), "as kubectl does") if own.is_file() else None


def of_this_machine(environ: Mapping[str, str] = os.environ, *, role: str = "admin") -> Found | None:
    """Find the kubeconfig of a `vipwire up` or `join` here for a role, if this process may read it."""
    path = Path(environ.get("VIPWIRE_DATA_DIR") or FOLDER, f"{role}.kubeconfig")
    return Found((path,), "of this machine") if os.access(path, os.R_OK) else None
