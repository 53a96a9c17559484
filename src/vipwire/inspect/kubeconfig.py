"""Which kubeconfig counts for whoever looks, where no flag says it: the one that kubectl would take.

    $KUBECONFIG  ▸  ~/.kube/config  ▸  none: then the Pod that this runs in says where the API server is

The proxy itself takes neither, as kube-proxy does not: what a node serves must not depend on somebody's shell.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vipwire.errors import ConfigError


class Found(NamedTuple):
    """A kubeconfig, and in words what names it."""

    path: Path
    by: str


def kubectls(environ: Mapping[str, str] = os.environ) -> Found | None:
    """Find the kubeconfig that kubectl would take; None if there is none.

    Raise ConfigError if $KUBECONFIG names no file, or several: kubectl merges these.
    """
    if named := [Path(text) for text in environ.get("KUBECONFIG", "").split(os.pathsep) if text]:
        there = [path for path in named if path.is_file()]
        if len(there) == 1:
            return Found(there[0], "$KUBECONFIG")
        listed = ", ".join(map(str, there or named))
        if there:
            raise ConfigError(
                f"$KUBECONFIG: names several files, and one is wanted: --kubeconfig with one of {listed}"
            )
        raise ConfigError(f"$KUBECONFIG: there is no file {listed}; unset it, or give --kubeconfig or --manifests")
    own = Path(environ.get("HOME", "/"), ".kube/config")
    return Found(own, "as kubectl does") if own.is_file() else None
