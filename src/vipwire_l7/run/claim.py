"""Claims the resources of `vipwire ingress`: its folder with HAProxy's sockets, and HAProxy's addresses.

HAProxy shares a listening socket with any process that sets SO_REUSEPORT, and the kernel prefers 192.0.2.1:80 to
*:80: two controllers would each get a part of the connections, without an error. So a controller that listens at all
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
from vipwire.process_lifecycle.local_sockets import list_names
from vipwire.process_lifecycle.single_instance import (
    Claim,
    Holder,
    build_already_running_error,
    claim_names,
    find_holder,
)
from vipwire_l7.haproxy.layout import Layout

_PREFIX: Final = "vipwire-ingress-at-"
_ALL: Final = "*"
_MAX_FOLDER: Final = 82
"""The maximum length in bytes: a socket path of HAProxy has at most 97, with `empty/` and eight more characters."""


@contextlib.contextmanager
def claim_ingress(
    folder: Path, layout: Layout, *, takeover: bool, command: str = "vipwire ingress"
) -> Iterator[Claim]:
    """Claim the resources of an ingress in this network namespace. Raise AlreadyRunningError if a process has them.

    With `takeover`, that process ends first and leaves its HAProxy to this process. Raise ConfigError if that process
    has another folder.
    """
    if (length := len(os.fsencode(folder))) > _MAX_FOLDER:
        raise ConfigError(f"--run-dir: {length} bytes (allowed: {_MAX_FOLDER}, for HAProxy's sockets are in it)")
    home = _name_folder(folder)
    places = [_name_listener(bind) for bind in (layout.http, layout.https) if bind]
    for holder in _find_holders(places):
        if not takeover:
            raise build_already_running_error(holder, takeover=True)
        if (there := holder.said.get("folder")) != str(folder):
            raise ConfigError(f"{holder}: to take its place, start with --run-dir {there}")
    details = [f"run directory {folder}", *(f"listening at {bind}" for bind in (layout.http, layout.https) if bind)]
    ready = (lambda: None) if takeover else None
    more = {"folder": str(folder)}
    with claim_names((home, *dict.fromkeys(places)), command, details, ready=ready, more=more) as claim:
        for holder in _find_holders(places):  # another one that started at the same time
            if holder.pid != os.getpid():
                raise build_already_running_error(holder, takeover=True)
        yield claim


def overlap(one: str, other: str) -> bool:
    """Report whether two places have an address and port in common."""
    (host, _, port), (host_2, _, port_2) = (name.rpartition(":") for name in (one, other))
    return port == port_2 and (host == host_2 or f"{_PREFIX}{_ALL}" in (host, host_2))


def _find_holders(places: Iterable[str]) -> Iterator[Holder]:
    for name in sorted({*places, *(each for each in list_names() if each.startswith(_PREFIX))}):
        if any(overlap(name, place) for place in places) and (holder := find_holder(name)) is not None:
            yield holder


def _name_folder(folder: Path) -> str:
    return f"vipwire-ingress-{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]}"


def _name_listener(bind: str) -> str:
    """Return the one name of an address and port; `*`, 0.0.0.0 and [::] are all addresses."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"{_PREFIX}{host or _ALL}:{port}"
    address = getattr(address, "ipv4_mapped", None) or address
    return f"{_PREFIX}{_ALL if address.is_unspecified else address}:{int(port)}"
