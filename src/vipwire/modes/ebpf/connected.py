"""Ends connected UDP sockets whose endpoint no longer serves, so that their processes connect again.

The kernel runs no program for a connected socket's datagrams, and connection tracking does not see the Service. The
map `peers` has each socket's endpoint; sock_diag(7) finds the socket in each network namespace.
"""

import errno
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from vipwire.errors import DecodeError
from vipwire.linux.bpf.maps import Map
from vipwire.linux.bpf.namespaces import run_in_namespace
from vipwire.linux.netlink.sock_diag import (
    BY_FAMILY,
    DESTROY,
    ConnectedSocket,
    decode_socket,
    encode_destroy,
    encode_list_connected,
)
from vipwire.linux.netlink.socket import NETLINK_SOCK_DIAG, NetlinkError, NetlinkSocket
from vipwire.logging import log
from vipwire.model.net import Address, Family, Protocol
from vipwire.modes.ebpf.layout import choose_family_suffix, read_endpoint, read_frontend_key
from vipwire.modes.ebpf.pinned import NodePins

Serving = Mapping[tuple[Address | None, int], frozenset[tuple[Address, int]]]
"""The serving endpoints by frontend."""
_OWN: Final = Path("/proc/self/ns/net")


class ConnectedSockets:
    """The connected UDP sockets of one family's frontends.

    `namespaces` are the network namespaces to search; None: those of all local processes.
    """

    def __init__(self, family: Family, pinned: NodePins, namespaces: tuple[Path, ...] | None) -> None:
        self._family, self._pins, self._namespaces = family, pinned, namespaces

    def end_stale_sockets(self, serving: Serving, *, whole: bool) -> int:
        """End the sockets whose endpoint no longer serves; return their number.

        `whole`: also those of unnamed frontends.
        """
        peers = self._pins.find(f"peers{choose_family_suffix(self._family)}")
        stale = {} if peers is None else dict(self._find_stale(peers, serving, whole=whole))
        if peers is None or not stale:
            return 0
        ended = 0
        for path in self._list_namespaces():
            try:
                ended += run_in_namespace(path, lambda: _end_sockets(peers, stale))
            except (OSError, DecodeError) as error:
                log.warning("cannot list UDP sockets in a network namespace", namespace=str(path), error=error)
            if not stale:
                break
        if stale:
            log.warning("UDP sockets keep removed endpoints: network namespaces not found", sockets=len(stale))
        return ended

    def _find_stale(
        self, peers: Map, serving: Serving, *, whole: bool
    ) -> Iterator[tuple[bytes, tuple[Address, int]]]:
        size = self._family.bits // 8 + 4
        for cookie, pair in peers.items():
            address, protocol, port = read_frontend_key(pair[:size])
            endpoint = read_endpoint(pair[size:])
            ends = serving.get((address, port), frozenset() if whole else None)
            if protocol == Protocol.UDP and ends is not None and endpoint not in ends:
                yield cookie, endpoint

    def _list_namespaces(self) -> Iterable[Path]:
        """List one path for each network namespace to search, this one first."""
        seen = set()
        found = self._namespaces
        for path in (_OWN, *(Path("/proc").glob("[0-9]*/ns/net") if found is None else found)):
            try:
                number = path.stat().st_ino
            except OSError:  # the process has ended
                continue
            if number not in seen:
                seen.add(number)
                yield path


def _end_sockets(peers: Map, stale: dict[bytes, tuple[Address, int]]) -> int:
    """End the stale sockets of this network namespace; remove them from `stale`, and before from the map."""
    ended = 0
    with NetlinkSocket(NETLINK_SOCK_DIAG) as diag:
        listed = [each for family in Family for each in diag.dump(BY_FAMILY, encode_list_connected(family))]
        for found in (decode_socket(bytes(payload)) for payload in listed):
            if stale.get(found.cookie) == found.peer:
                del stale[found.cookie]
                peers.remove([found.cookie])
                ended += _destroy_socket(diag, found)
    return ended


def _destroy_socket(diag: NetlinkSocket, found: ConnectedSocket) -> bool:
    try:
        diag.request(DESTROY, encode_destroy(found))
    except NetlinkError as error:
        if error.errno != errno.ENOENT:  # the process has closed it
            raise
        return False
    return True
