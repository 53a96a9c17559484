"""Configures local Pods for direct return, so that their kernel accepts packets for a VIP.

In the Pod's network namespace vipwire puts the VIP on `lo` (routed packets) or on a tunnel device (IP in IP), and
turns off reverse path filtering for the tunnel. It finds the namespace by the Pod's address, in the directories of
the container runtimes.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from vipwire.errors import CommitError
from vipwire.linux.bpf.namespaces import run_in_namespace
from vipwire.linux.netlink.ipvs import Method
from vipwire.linux.netlink.links import DELETE_ADDRESS, NEW_ADDRESS
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL, encode_attribute
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkError, NetlinkSocket
from vipwire.model.net import Address, Family, format_address, is_loopback
from vipwire.modes.ipvs.objects.device import (
    create_link,
    delete_link,
    encode_vip,
    link_addresses,
    link_index,
    link_names,
)
from vipwire.modes.ipvs.objects.names import TUNNELS

DIRECTORIES = (Path("/run/netns"), Path("/run/docker/netns"))

_KINDS = {Family.IPV4: ("ipip", b""), Family.IPV6: ("ip6tnl", encode_attribute(9, b"\x29"))}  # IFLA_IPTUN_PROTO: IPv6
_LO = 1
_LINK_LOCAL = b"\xfe\x80"  # every IPv6 device has one
T = TypeVar("T")


class Pods:
    """The network namespaces of this node's Pods, one family."""

    def __init__(self, family: Family) -> None:
        self._family, self._name = family, TUNNELS[family]

    def read(self) -> dict[tuple[Address, Address], Method]:
        """Read the VIPs that each Pod receives for, as (Pod, VIP) to method."""
        found: dict[tuple[Address, Address], Method] = {}
        for path in _list_namespaces():
            with contextlib.suppress(OSError):
                places = _call_inside(path, self._find_interfaces)
                vips = [(a, p) for a, p in places.items() if p in ("lo", self._name) and not is_loopback(a)]
                for pod in (a for a, p in places.items() if p not in ("lo", self._name)):
                    for vip, place in vips:
                        found[pod, vip] = Method.ROUTE if place == "lo" else Method.TUNNEL
        return found

    def prepare(self, wanted: Mapping[tuple[Address, Address], Method]) -> None:
        """Configure Pods to receive for VIPs; raise CommitError if a Pod's network namespace is not found."""
        where = self._find_namespaces({pod for pod, _ in wanted}) if wanted else {}
        for (pod, vip), method in wanted.items():
            if pod not in where:
                places = " or ".join(map(str, DIRECTORIES))
                raise CommitError(
                    f"the network namespace of the Pod {format_address(pod)} is not in {places}, "
                    "where vipwire looks for it for direct return (in a container: mount the host's /run/netns)"
                )
            try:
                _call_inside(where[pod], partial(self._prepare_pod, pod, vip, method))
            except OSError as error:
                raise CommitError(f"cannot prepare the Pod {format_address(pod)}: {error}") from error

    def release(self, unwanted: Iterable[tuple[Address, Address]]) -> None:
        """Remove the configuration from Pods; skip Pods that no longer exist."""
        pairs = list(unwanted)
        where = self._find_namespaces({pod for pod, _ in pairs}) if pairs else {}
        for pod, vip in pairs:
            if pod in where:
                with contextlib.suppress(OSError):
                    _call_inside(where[pod], partial(self._release_pod, vip))

    def _release_pod(self, vip: Address, link: NetlinkSocket) -> None:
        for name in ("lo", self._name):
            if (index := link_index(link, name)) is not None:
                with contextlib.suppress(NetlinkError):
                    link.request(DELETE_ADDRESS, encode_vip(index, vip))
        if (
            self._name not in self._find_interfaces(link).values()
            and (index := link_index(link, self._name)) is not None
        ):
            delete_link(link, index)

    def _prepare_pod(self, pod: Address, vip: Address, method: Method, link: NetlinkSocket) -> None:
        index = self._create_tunnel(link, pod) if method is Method.TUNNEL else _LO
        try:
            link.request(NEW_ADDRESS, encode_vip(index, vip), NLM_F_CREATE | NLM_F_EXCL)
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise

    def _create_tunnel(self, link: NetlinkSocket, pod: Address) -> int:
        if (index := link_index(link, self._name)) is None:
            kind, extra = _KINDS[self._family]
            create_link(link, self._name, kind, encode_attribute(2, pod) + extra, up=True)  # IFLA_IPTUN_LOCAL
            index = link_index(link, self._name)
        if index is None:
            raise OSError(errno.ENODEV, f"no device {self._name}")
        for device in ("all", self._name):
            with contextlib.suppress(OSError):
                Path(f"/proc/sys/net/ipv4/conf/{device}/rp_filter").write_text("0\n", encoding="ascii")
        return index

    def _find_namespaces(self, pods: set[Address]) -> dict[Address, Path]:
        found: dict[Address, Path] = {}
        for path in _list_namespaces():
            with contextlib.suppress(OSError):
                found.update(
                    (address, path) for address in _call_inside(path, self._find_interfaces) if address in pods
                )
        return found

    def _find_interfaces(self, link: NetlinkSocket) -> dict[Address, str]:
        names = link_names(link)
        found = link_addresses(link, self._family)
        return {item.address: names.get(item.link, "") for item in found if item.address[:2] != _LINK_LOCAL}


def _list_namespaces() -> list[Path]:
    return [path for directory in DIRECTORIES if directory.is_dir() for path in sorted(directory.iterdir())]


def _call_inside(path: Path, action: Callable[[NetlinkSocket], T]) -> T:
    """Call `action` with a socket of another network namespace."""

    def act() -> T:
        with NetlinkSocket(NETLINK_ROUTE) as link:
            return action(link)

    return run_in_namespace(path, act)
