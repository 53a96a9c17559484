"""Announces LoadBalancer addresses to neighbours by ARP and NDP, and answers requests for them.

    IPv4   gratuitous ARP (RFC 5227): a request and a reply that name the address; replies to requests for it
    IPv6   an unsolicited neighbour advertisement with the override flag to all nodes (RFC 4861 7.2.6); advertisements
           in answer to solicitations, which arrive at the address's solicited-node group

No interface has these addresses: rules translate their packets before routing. So the kernel does not answer for
them; vipwire answers from raw sockets, which need CAP_NET_RAW.
"""

import asyncio
import contextlib
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from vipwire.errors import ConfigError

_ETH_ARP: Final = 0x0806
_EVERYBODY: Final = b"\xff" * 6
_ALL_NODES: Final = "ff02::1"
_SOLICITATION, _ADVERTISEMENT = 135, 136
_SOLICITED, _OVERRIDE = 0x40000000, 0x20000000
_ICMP6_FILTER: Final = 1
Claimed: TypeAlias = Callable[[bytes, bytes], None]
"""Called with an address and the hardware address of another machine that claims it."""


def build_arp_frame(operation: int, hardware: bytes, address: bytes, to: bytes, to_address: bytes) -> bytes:
    """Build an Ethernet frame with an ARP message: operation 1 is a request, 2 a reply (RFC 826)."""
    head = to + hardware + struct.pack("!H", _ETH_ARP)
    target = bytes(6) if operation == 1 else to
    return head + struct.pack("!HHBBH", 1, 0x0800, 6, 4, operation) + hardware + address + target + to_address


def read_arp_request(frame: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Read an ARP request: the sender's two addresses, the requested address. None for other frames."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x06" or frame[20:22] != b"\0\1":
        return None
    return frame[22:28], frame[28:32], frame[38:42]


def build_neighbour_advertisement(address: bytes, hardware: bytes, *, solicited: bool) -> bytes:
    """Build a neighbour advertisement without a checksum, which the kernel fills in."""
    flags = _OVERRIDE | (_SOLICITED if solicited else 0)
    return struct.pack("!BBHI", _ADVERTISEMENT, 0, 0, flags) + address + b"\x02\x01" + hardware


def build_neighbour_solicitation(address: bytes, hardware: bytes) -> bytes:
    return struct.pack("!BBHI", _SOLICITATION, 0, 0, 0) + address + b"\x01\x01" + hardware


def solicited_node_group(address: bytes) -> bytes:
    """Return an address's solicited-node multicast group, ff02::1:ffXX:XXXX (RFC 4291 2.7.1)."""
    return bytes.fromhex("ff0200000000000000000001ff") + address[13:]


def read_arp_claim(frame: bytes) -> tuple[bytes, bytes] | None:
    """Read the hardware address and the address that an ARP frame claims; None for other frames and ARP probes."""
    if len(frame) < 42 or frame[12:14] != b"\x08\x06" or frame[28:32] == bytes(4):
        return None
    return frame[22:28], frame[28:32]


def read_advertisement_claim(message: bytes) -> tuple[bytes, bytes] | None:
    """Read the hardware address and the address that an advertisement claims; None without a hardware address."""
    if len(message) < 32 or message[0] != _ADVERTISEMENT or message[24:26] != b"\x02\x01":
        return None
    return message[26:32], message[8:24]


class Announcer:
    """Announces addresses on one interface. Raise ConfigError if the sockets cannot be opened.

    The announcer calls `claimed` with an address of this machine that another machine claims. It calls `speaks`
    before every packet, and sends none while that returns False.

    After `answer_until_handed_over`, the announcer answers for an address until it hears the next owner, so that no
    request is lost in between. The announcer does not answer probes for such an address.
    """

    def __init__(
        self,
        interface: str,
        claimed: Claimed = lambda _address, _hardware: None,
        speaks: Callable[[], bool] = lambda: True,
    ) -> None:
        self._interface, self._claimed, self._speaks = interface, claimed, speaks
        self._addresses: set[bytes] = set()
        self._handed: set[bytes] = set()
        self._released = asyncio.Event()
        self._probed: dict[bytes, bytes] = {}
        try:
            self._index = socket.if_nametoindex(interface)
            self._arp = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_ARP))
            self._arp.bind((interface, _ETH_ARP))
            self._icmp = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
        except OSError as error:
            raise ConfigError(f"--announce-interface {interface}: {error.strerror or error}") from error
        self._hardware: bytes = self._arp.getsockname()[4]
        self._configure_sockets()

    def _configure_sockets(self) -> None:
        passed = bytearray(b"\xff" * 32)  # a set bit blocks a type
        for wanted in (_SOLICITATION, _ADVERTISEMENT):
            passed[wanted // 8] &= ~(1 << wanted % 8) & 0xFF
        # The kernel's filter has native words with bits counted inside each: on little-endian machines bytes fit.
        self._icmp.setsockopt(socket.IPPROTO_ICMPV6, _ICMP6_FILTER, bytes(passed))
        for option in (socket.IPV6_MULTICAST_HOPS, socket.IPV6_UNICAST_HOPS):
            self._icmp.setsockopt(socket.IPPROTO_IPV6, option, 255)  # receivers drop other hop limits
        self._icmp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, self._index)
        self._icmp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._interface.encode())
        for each in (self._arp, self._icmp):
            each.settimeout(0)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        return self._arp, self._icmp

    def close(self) -> None:
        self._arp.close()
        self._icmp.close()

    def listen(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.add_reader(self._arp, self._receive_arp)
        loop.add_reader(self._icmp, self._receive_solicitation)

    def set_announced(self, addresses: Iterable[str], not_for: Iterable[str] = ()) -> frozenset[bytes]:
        new = frozenset(map(pack_address, addresses)) - self._addresses
        self._stop_answering(self._handed & new)
        self._change_multicast_groups(socket.IPV6_JOIN_GROUP, new)
        self._addresses |= new
        old = self._addresses.intersection(map(pack_address, not_for))
        self._change_multicast_groups(socket.IPV6_LEAVE_GROUP, old)
        self._addresses -= old
        return new

    def answer_until_handed_over(self, addresses: Iterable[str]) -> None:
        """Stop announcing these addresses; answer for them until the next owner announces, or `stop_answering`."""
        going = self._addresses.intersection(map(pack_address, addresses))
        self._addresses -= going
        self._handed |= going
        self._released.clear()

    def stop_answering(self, addresses: Iterable[str]) -> None:
        """Stop answering for those of these addresses that are still handed on."""
        self._stop_answering(self._handed.intersection(map(pack_address, addresses)))

    async def wait_until_released(self) -> None:
        while self._handed:
            await self._released.wait()

    def _stop_answering(self, addresses: Iterable[bytes]) -> None:
        gone = frozenset(addresses)
        self._change_multicast_groups(socket.IPV6_LEAVE_GROUP, gone)
        self._handed -= gone
        if not self._handed:
            self._released.set()

    async def probe(self, addresses: Iterable[str], times: int, seconds: float) -> dict[str, bytes]:
        """Probe `times` times, waiting `seconds` after each; return used addresses with their hardware addresses."""
        packed = {pack_address(each): each for each in addresses}
        for each in packed:
            self._probed[each] = b""
        try:
            for _ in range(times):
                for each in packed:
                    self._send_query(each)
                await asyncio.sleep(seconds)
            return {text: found for each, text in packed.items() if (found := self._probed[each])}
        finally:
            for each in packed:
                del self._probed[each]

    def _send_query(self, address: bytes) -> None:
        if len(address) == 4:
            self._send_frame(
                build_arp_frame(1, self._hardware, bytes(4), _EVERYBODY, address)
            )  # sender 0.0.0.0: no table changes
            return
        group = socket.inet_ntop(socket.AF_INET6, solicited_node_group(address))
        with contextlib.suppress(OSError):  # the link is down, or has no address of its own yet
            self._icmp.sendto(build_neighbour_solicitation(address, self._hardware), (group, 0, 0, self._index))

    def _change_multicast_groups(self, option: int, addresses: Iterable[bytes]) -> None:
        for address in addresses:
            group = solicited_node_group(address) + struct.pack("@I", self._index) if len(address) == 16 else b""
            with contextlib.suppress(OSError):  # two addresses may share a group
                if group:
                    self._icmp.setsockopt(socket.IPPROTO_IPV6, option, group)

    def send_announcements(self, addresses: Iterable[bytes]) -> None:
        if not self._speaks():
            return
        for address in self._addresses.intersection(addresses):
            if len(address) == 4:
                for operation in (1, 2):
                    self._send_frame(build_arp_frame(operation, self._hardware, address, _EVERYBODY, address))
            else:
                self._send_advertisement(address, _ALL_NODES, solicited=False)

    def _receive_arp(self) -> None:
        try:
            frame = self._arp.recv(2048)
        except OSError:
            return
        self._record_claim(read_arp_claim(frame))
        asked = read_arp_request(frame)
        if asked is None or asked[1] == asked[2] or not self._answers_for(asked[2], probing=asked[1] == bytes(4)):
            return
        if self._speaks():
            self._send_frame(build_arp_frame(2, self._hardware, asked[2], asked[0], asked[1]))

    def _answers_for(self, address: bytes, *, probing: bool) -> bool:
        return address in self._addresses or (address in self._handed and not probing)

    def _record_claim(self, claim: tuple[bytes, bytes] | None) -> None:
        if claim is None or claim[0] == self._hardware:
            return
        if claim[1] in self._probed:
            self._probed[claim[1]] = claim[0]
        if claim[1] in self._handed:
            self._stop_answering((claim[1],))
        if claim[1] in self._addresses and self._speaks():
            self._claimed(claim[1], claim[0])

    def _receive_solicitation(self) -> None:
        try:
            message, sender = self._icmp.recvfrom(2048)
        except OSError:
            return
        self._record_claim(read_advertisement_claim(message))
        host = sender[0].partition("%")[0]
        nobody = host == "::"  # duplicate address detection (RFC 4862 5.4)
        if len(message) < 24 or message[0] != _SOLICITATION or not self._answers_for(message[8:24], probing=nobody):
            return
        if not self._speaks():
            return
        if nobody or not self._send_advertisement(
            message[8:24], host, solicited=True
        ):  # the sender may be unreachable
            self._send_advertisement(message[8:24], _ALL_NODES, solicited=False)

    def _send_advertisement(self, address: bytes, to: str, *, solicited: bool) -> bool:
        try:
            self._icmp.sendto(
                build_neighbour_advertisement(address, self._hardware, solicited=solicited), (to, 0, 0, self._index)
            )
        except OSError:  # the link is down, or has no address of its own yet: the keeper announces again
            return False
        return True

    def _send_frame(self, frame: bytes) -> None:
        try:
            self._arp.send(frame)
        except OSError:
            return


def pack_address(address: str) -> bytes:
    return ipaddress.ip_address(address).packed
