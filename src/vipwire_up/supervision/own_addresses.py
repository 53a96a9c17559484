"""The addresses of this process's listeners for endpoints of Services `kubernetes` and `kube-dns`.

    listening address      endpoint address
    10.0.0.5               10.0.0.5
    0.0.0.0, ::            the Node's address
    127.0.0.1, ::1         the Node's address, with a second socket there for this machine only

A loopback address cannot be an endpoint: a Pod would connect to itself. So a listener for this machine only has a
second socket at the Node's address, which drops packets from other machines.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from vipwire.config.modes import VIP_DEVICES
from vipwire.linux.host.addresses import AddressWatch, LocalAddress, read_addresses
from vipwire.logging import log
from vipwire.process_lifecycle.event_loop import run_until_first_ends
from vipwire_up.api.objects.resource import Object
from vipwire_up.dns.sockets import drop_queries_of_other_machines
from vipwire_up.nodes.node import machine_annotations, node_addresses

_ELSEWHERE: Final = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses of documentation (RFC 5737, RFC 3849), to which only the default route leads."""
_ADDRESS_PREFERENCES, _PREFER_PUBLIC = 72, 0x2  # IPV6_ADDR_PREFERENCES, not temporary (RFC 5014)

Work: TypeAlias = Callable[[tuple[str, ...]], Coroutine[Any, Any, None]]


class OwnAddresses:
    """The addresses of this machine, as its Node has them; followed while `run` runs.

    `given` are the addresses that the operator chose. The Node's address stays while the machine has it. Devices
    with Services' addresses, which a mode makes, do not count.
    """

    def __init__(self, node: str, given: tuple[str, ...] = (), *, probes: bool) -> None:
        self._node, self._given, self._probes = node, given, probes
        self._changed = asyncio.Event()
        self.own: tuple[str, ...] = ()
        self._set_addresses([each for each in read_addresses() if each.interface not in VIP_DEVICES])

    def _set_addresses(self, machine: Sequence[LocalAddress]) -> None:
        preferred = (*self._given, *self.own, *default_route_sources())
        self._addresses = node_addresses(machine, self._node, preferred)
        self._about = machine_annotations(machine, probes=self._probes)
        self.own = internal_ips_of(self._addresses)

    def describe_machine(self) -> tuple[list[Object], dict[str, str]]:
        """Return the Node's addresses, and the annotations that describe the machine."""
        return self._addresses, self._about

    async def run(self) -> None:
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        with AddressWatch(VIP_DEVICES) as watch:
            self._check_addresses(watch)
            loop.add_reader(watch, news.set)
            try:
                while True:
                    await news.wait()
                    news.clear()
                    if watch.refresh():
                        self._check_addresses(watch)
            finally:
                loop.remove_reader(watch)

    def _check_addresses(self, watch: AddressWatch) -> None:
        before = self.own
        self._set_addresses(watch.addresses)
        if before != self.own:
            log.info("the address of this machine has changed", before=",".join(before), now=",".join(self.own))
            self._changed.set()
            self._changed = asyncio.Event()

    async def restart_on_change(self, work: Work) -> None:
        """Run `work` with the Node's addresses until it ends; restart it whenever they change."""
        while True:
            changed, own = self._changed, self.own
            if await run_until_first_ends(work(own), changed.wait()) == 0:
                return

    async def call_on_change(self, work: Work, since: tuple[str, ...]) -> None:
        """Call `work` whenever the Node's addresses differ from `since`, until cancelled."""
        while True:
            while self.own == since:
                await self._changed.wait()
            since = self.own
            await work(since)


@dataclass(frozen=True, slots=True)
class ReachableAddress:
    """An address that an endpoint can have. `inner` if it needs a socket for this machine only."""

    address: str
    inner: bool


def find_reachable_address(bound: Sequence[str], node: Iterable[str], version: int) -> ReachableAddress | None:
    """Return the address for a listener's endpoint, in an IP version (4 or 6); None if there is none."""
    own = next((text for text in node if ipaddress.ip_address(text).version == version), None)
    parsed = [address for text in bound if (address := ipaddress.ip_address(text)).version == version]
    for address in parsed:
        if not (address.is_loopback or address.is_unspecified or address.is_link_local):
            return ReachableAddress(str(address), inner=False)
    if own is None:
        return None
    return ReachableAddress(own, inner=not any(address.is_unspecified for address in parsed))


def default_route_sources() -> Iterator[str]:
    """Yield the source address that the kernel chooses for the default route, of each family. Sends no packet."""
    for family, elsewhere in _ELSEWHERE.items():
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as asked:
            if family is socket.AF_INET6:
                asked.setsockopt(socket.IPPROTO_IPV6, _ADDRESS_PREFERENCES, _PREFER_PUBLIC)
            asked.connect((elsewhere, 9))
            yield asked.getsockname()[0]


def internal_ips_of(addresses: Iterable[Object]) -> tuple[str, ...]:
    return tuple(each["address"] for each in addresses if each["type"] == "InternalIP")


def open_inner_socket(address: str, port: int) -> socket.socket:
    """Open a TCP socket that only this machine reaches. Raise OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        drop_queries_of_other_machines(made)
        made.bind((address, port))
    except BaseException:
        made.close()
        raise
    return made
