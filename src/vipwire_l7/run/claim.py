"""The claim of `vipwire ingress`: its folder, where HAProxy's sockets are, and the addresses where HAProxy listens.

HAProxy shares a listening socket with whoever asks the kernel to (SO_REUSEPORT), and the kernel prefers 192.0.2.1:80
to *:80: two of them would each get a part of the connections, and nobody would be told. So whoever listens at all
addresses of a port claims them all, and claims can be found by their port.
"""

import contextlib
import hashlib
import ipaddress
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError
from vipwire.process_lifecycle.local_sockets import names
from vipwire.process_lifecycle.single_instance import Claim, Holder, claimed, find_holder, refusal
from vipwire_l7.haproxy.layout import Layout

_PREFIX: Final = "vipwire-ingress-at-"
_ALL: Final = "*"
_MAX_FOLDER: Final = 82
"""Bytes. HAProxy takes paths of 97 bytes for sockets, and names one `empty/` and eight characters."""


@contextlib.contextmanager
def claim_ingress(folder: Path, layout: Layout, *, takeover: bool) -> Iterator[Claim]:
    """Claim what an ingress uses in this network namespace. Raise AlreadyRunningError if another one has it.

    With `takeover` that one ends first, and leaves its HAProxy to us: raise ConfigError if that is in another folder.
    """
    if (length := len(os.fsencode(folder))) > _MAX_FOLDER:
        raise ConfigError(f"--run-dir: {length} bytes (allowed: {_MAX_FOLDER}, for HAProxy's sockets are in it)")
    home = _folder_name(folder)
    places = [_listen_name(bind) for bind in (layout.http, layout.https) if bind]
    for holder in _holders(places):
        if not takeover:
            raise refusal(holder, takeover=True)
        if (there := holder.said.get("folder")) != str(folder):
            raise ConfigError(f"{holder}: to take its place, start with --run-dir {there}")
    details = [f"run directory {folder}", *(f"listening at {bind}" for bind in (layout.http, layout.https) if bind)]
    ready = (lambda: None) if takeover else None
    more = {"folder": str(folder)}
    with claimed((home, *dict.fromkeys(places)), "vipwire ingress", details, ready=ready, more=more) as claim:
        for holder in _holders(places):  # one that has started in the same moment
            if holder.pid != os.getpid():
                raise refusal(holder, takeover=True)
        yield claim


def overlap(one: str, other: str) -> bool:
    """Tell whether two names of places mean a common address and port."""
    (host, _, port), (host_2, _, port_2) = (name.rpartition(":") for name in (one, other))
    return port == port_2 and (host == host_2 or f"{_PREFIX}{_ALL}" in (host, host_2))


def _holders(places: Iterable[str]) -> Iterator[Holder]:
    """Find who has a place in common with these."""
    for name in sorted({*places, *(each for each in names() if each.startswith(_PREFIX))}):
        if any(overlap(name, place) for place in places) and (holder := find_holder(name)) is not None:
            yield holder


def _folder_name(folder: Path) -> str:
    return f"vipwire-ingress-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _listen_name(bind: str) -> str:
    """Name an address and port, in one way; `*`, 0.0.0.0 and [::] are all addresses."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{_PREFIX}{host or _ALL}:{port}"
    address = getattr(address, "ipv4_mapped", None) or address
    return f"{_PREFIX}{_ALL if address.is_unspecified else address}:{int(port)}"
