"""The claim of `vipwire ingress`: its folder, where HAProxy's sockets are, and the addresses where HAProxy listens.

HAProxy shares a listening socket with whoever asks the kernel to (SO_REUSEPORT): two of them would each get a part of
the connections, and nobody would be told.
"""

import hashlib
from contextlib import AbstractContextManager
from pathlib import Path

from vipwire.errors import ConfigError
from vipwire.ingress.haproxy.layout import Layout
from vipwire.process.single_instance import Claim, claimed, find_holder


def claim_ingress(folder: Path, layout: Layout, *, takeover: bool) -> AbstractContextManager[Claim]:
    """Claim what an ingress uses in this network namespace. Raise AlreadyRunningError if another one has it.

    With `takeover` that one ends first, and leaves its HAProxy to us: raise ConfigError if that is in another folder.
    """
    home = _folder_name(folder)
    places = [_listen_name(bind) for bind in (layout.http, layout.https) if bind]
    if takeover:
        for name in places:
            holder = find_holder(name)
            if holder is not None and (there := holder.said.get("folder")) != str(folder):
                raise ConfigError(f"{holder}: to take its place, start with --run-dir {there}")
    details = [f"run directory {folder}", *(f"listening at {bind}" for bind in (layout.http, layout.https) if bind)]
    ready = (lambda: None) if takeover else None
    return claimed((home, *places), "vipwire ingress", details, ready=ready, more={"folder": str(folder)})


def _folder_name(folder: Path) -> str:
    return f"vipwire-ingress-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _listen_name(bind: str) -> str:
    """Name an address and port; `*:80`, `:80` and `0.0.0.0:80` are one."""
    host, _, port = bind.rpartition(":")
    return f"vipwire-ingress-at-{'*' if host in ('', '*', '0.0.0.0') else host}:{port}"  # noqa: S104  # compared only
