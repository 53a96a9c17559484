"""Finds the kubeconfig of a command that names none: kubectl's, or that of a `vipwire up` on this machine.

    $KUBECONFIG  ▸  ~/.kube/config  ▸  the Pod's own  ▸  that of a `vipwire up` on this machine

$KUBECONFIG may name several files, which are merged; missing ones are skipped.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from vipwire.errors import ConfigError
from vipwire.kube.access.access import FOLDER, Access, build_access
from vipwire.kube.access.kubeconfig import parse_kubeconfigs
from vipwire.kube.access.tls import read_text


class KubeconfigFiles(NamedTuple):
    """A kubeconfig in one or several files, and a description of where it was configured."""

    paths: tuple[Path, ...]
    by: str

    def access(self, tell: Callable[[str], object], environ: Mapping[str, str] = os.environ) -> Access:
        """Find out how to reach its server, and pass `tell` a line about it; raise ConfigError."""
        selected = parse_kubeconfigs((read_text(path, self.by), path) for path in self.paths)
        access = build_access(selected, None, environ)
        tell(f"note: asking {access.server}, which {selected.file} names ({self.by})")
        return access


def find_kubectl_files(environ: Mapping[str, str] = os.environ) -> KubeconfigFiles | None:
    """Find kubectl's kubeconfig; None if none exists. Raise ConfigError if $KUBECONFIG names only missing files."""
    if named := [Path(text) for text in environ.get("KUBECONFIG", "").split(os.pathsep) if text]:
        there = tuple(path for path in dict.fromkeys(named) if path.is_file())
        if not there:
            listed = ", ".join(map(str, named))
            raise ConfigError(f"$KUBECONFIG: no such file: {listed}; unset the variable, or name another kubeconfig")
        return KubeconfigFiles(there, "$KUBECONFIG")
    own = Path(environ.get("HOME", "/"), ".kube/config")
    return KubeconfigFiles((own,), "as kubectl does") if own.is_file() else None


def find_files_of_this_machine(
    environ: Mapping[str, str] = os.environ, *, role: str = "admin"
) -> KubeconfigFiles | None:
    """Find the readable kubeconfig of a role from a `vipwire up` or `join` on this machine; None without one."""
    path = Path(environ.get("VIPWIRE_DATA_DIR") or FOLDER, f"{role}.kubeconfig")
    return KubeconfigFiles((path,), "of this machine") if os.access(path, os.R_OK) else None
