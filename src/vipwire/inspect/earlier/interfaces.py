"""Lists the programs that see a packet at an interface before IP does: XDP, tc filters, and tcx."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from vipwire.errors import DecodeError
from vipwire.linux.bpf.programs import list_tcx_programs
from vipwire.linux.netlink.links import GET_LINK, Link, decode_whole_link, encode_list_links
from vipwire.linux.netlink.socket import NETLINK_ROUTE, NetlinkSocket
from vipwire.linux.netlink.traffic_control import (
    GET_FILTER,
    GET_QDISC,
    decode_filter,
    decode_ingress,
    encode_list_filters,
    encode_list_qdiscs,
)


class InterfaceProgram(NamedTuple):
    """A program at the ingress of an interface; `sort` is XDP, tc or tcx."""

    sort: str
    name: str
    interface: str


def list_interface_programs() -> list[InterfaceProgram]:
    """List the ingress programs of this network namespace's interfaces. Skips unreadable interfaces."""
    found: list[InterfaceProgram] = []
    with suppress(OSError, DecodeError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        links = _list_links(netlink)
        found += [InterfaceProgram("XDP", f"program {each.xdp}", each.name) for each in links if each.xdp]
        for each in links:
            with suppress(OSError, KeyError):  # before Linux 6.6, without rights, on another architecture
                found += [InterfaceProgram("tcx", f"program {n}", each.name) for n in list_tcx_programs(each.number)]
        found += _list_filters(netlink, {each.number: each.name for each in links})
    return found


def is_bridge(name: str) -> bool:
    with suppress(OSError, DecodeError), NetlinkSocket(NETLINK_ROUTE) as netlink:
        return any(each.kind == "bridge" for each in _list_links(netlink) if each.name == name)
    return False


def _list_links(netlink: NetlinkSocket) -> list[Link]:
    return [decode_whole_link(payload) for payload in netlink.dump(GET_LINK, encode_list_links())]


def _list_filters(netlink: NetlinkSocket, names: dict[int, str]) -> Iterator[InterfaceProgram]:
    numbers = {decode_ingress(payload) for payload in netlink.dump(GET_QDISC, encode_list_qdiscs())}
    for number in sorted(numbers & names.keys()):
        filters = netlink.dump(GET_FILTER, encode_list_filters(number))
        for name in dict.fromkeys(decode_filter(payload) for payload in filters):
            yield InterfaceProgram("tc", name, names[number])
