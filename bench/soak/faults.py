"""The faults of a soak: each does harm, undoes it, and records when connections may fail by it."""

import asyncio
import itertools
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.soak.probing import Window
from bench.soak.scene import NODE, Part, Scene
from tests.fakes.conntrack import encode_flow

from vipwire.linux.netlink.conntrack import CT_NEW, Flow
from vipwire.linux.netlink.message import NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, encode_message
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import parse_address

_REPAIR: Final = 30.0
"""Seconds until removed rules must be back; see `reconcile.pacer` for how often vipwire checks."""
_LIMIT: Final = Path("/proc/sys/net/netfilter/nf_conntrack_max")
_MOST: Final = 300_000
"""The most entries made to fill the conntrack table."""
_TABLE: Final = (
    "nft delete table ip vipwire",
    "nft flush table ip vipwire",
    "nft flush chain ip vipwire nat-prerouting",
)
_PROGRAMS: Final = f"{sys.executable} -m tests.proxy.conformance.ebpf_harm"
_FLUSHES: Final = {
    "nftables": _TABLE,
    "ebpf": (*_TABLE, f"{_PROGRAMS} detach IPv4", f"{_PROGRAMS} empty IPv4"),
    "iptables": ("iptables -t nat -F", "iptables -t nat -F KUBE-SERVICES", "iptables -t nat -F PREROUTING"),
    "userspace": ("iptables -t nat -F", "iptables -t nat -F PREROUTING"),
    "ipvs": ("ipvsadm -C", "iptables -t nat -F"),
}
"""Commands that remove rules, by mode."""
_PORT: Final = b"\xab\xcd"
_SEEN, _ASSURED, _CONFIRMED = 1 << 1, 1 << 2, 1 << 3


class Harm:
    """The faults of one scene, and their time windows."""

    def __init__(self, scene: Scene, chance: random.Random) -> None:
        self._scene, self._chance = scene, chance
        self.windows: list[Window] = []

    @asynccontextmanager
    async def _window(self, fault: str, after: float) -> AsyncIterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.windows.append(Window(fault, begin, time.monotonic() + after))

    async def _again(self, part: Part, number: signal.Signals) -> None:
        part.end(number)
        await asyncio.sleep(self._chance.uniform(0.0, 4.0))
        part.launch()
        await asyncio.to_thread(self._ready, part)

    def _ready(self, part: Part) -> None:
        limit = time.monotonic() + 60
        while not part.is_ready() and time.monotonic() < limit:
            time.sleep(0.05)

    async def server_stops(self) -> None:
        """SIGTERM for the API server, and a restart some seconds later."""
        await self._again(self._scene.up, signal.SIGTERM)

    async def server_killed(self) -> None:
        """SIGKILL for the API server."""
        await self._again(self._scene.up, signal.SIGKILL)

    async def proxy_stops(self) -> None:
        """SIGTERM for the proxy: rules stay."""
        await self._again(self._scene.proxy, signal.SIGTERM)

    async def proxy_killed(self) -> None:
        """SIGKILL for the proxy at a random time."""
        await self._again(self._scene.proxy, signal.SIGKILL)

    async def rules_flushed(self) -> None:
        """Remove vipwire's rules: all of them, those of a family, or a chain."""
        command = self._chance.choice(_FLUSHES[self._scene.mode])
        before = self._repairs()
        async with self._window("rules flushed", 1.0):
            await asyncio.to_thread(self._scene.run, *command.split())
            limit = time.monotonic() + _REPAIR
            while self._repairs() == before and time.monotonic() < limit:  # noqa: ASYNC110 - a log tells nobody
                await asyncio.sleep(0.1)

    def _repairs(self) -> int:
        text = self._scene.proxy.log.read_text(encoding="utf-8", errors="replace")
        return text.count("repaired changes of other programs in the kernel")

    async def netlink_fails(self) -> None:
        """Let the proxy's netlink receives overflow (ENOBUFS) or be interrupted (EINTR), and some sends fail."""
        self._scene.proxy_faults.netlink(overflow=60, interrupt=60, unsent=30)
        await asyncio.sleep(self._chance.uniform(3.0, 8.0))
        self._scene.proxy_faults.netlink()

    async def disk_full(self) -> None:
        """Fill the API server's disk, for some seconds."""
        filler = self._scene.data / "filler"
        await asyncio.to_thread(_fill, filler)
        await asyncio.sleep(self._chance.uniform(2.0, 5.0))
        filler.unlink()

    async def clock_jumps(self) -> None:
        """Let the clock of both jump by up to a day in either direction, and back."""
        ahead = self._chance.choice((-86400, -3600, -30, 30, 3600, 86400))
        for each in (self._scene.proxy_faults, self._scene.up_faults):
            each.clock(ahead)
        await asyncio.sleep(self._chance.uniform(3.0, 8.0))
        for each in (self._scene.proxy_faults, self._scene.up_faults):
            each.clock(0)

    async def conntrack_full(self) -> None:
        """Fill the conntrack table of the proxy's node: the kernel drops new connections."""
        async with self._window("conntrack full", 3.0):
            with self._scene.lab.enter_namespace(NODE):
                netlink = NetlinkSocket(NETLINK_NETFILTER)
            with netlink:
                limit, seconds = int(_LIMIT.read_text(encoding="ascii")), self._chance.uniform(1.0, 3.0)
                await asyncio.to_thread(_fill_conntrack, netlink, limit, seconds)
            await asyncio.to_thread(self._scene.run, "conntrack", "-F")

    def all(self) -> dict[str, Callable[[], Awaitable[None]]]:
        proxy = {} if self._scene.own else {"proxy stops": self.proxy_stops, "proxy killed": self.proxy_killed}
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "API server stops": self.server_stops,
            "API server killed": self.server_killed,
            **proxy,
            "rules flushed": self.rules_flushed,
            "disk full": self.disk_full,
        }
        if self._scene.proxy_faults.possible:
            found |= {"netlink fails": self.netlink_fails, "clock jumps": self.clock_jumps}
        if int(_LIMIT.read_text(encoding="ascii")) <= _MOST:
            found["conntrack full"] = self.conntrack_full
        return found


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


def _fill_conntrack(netlink: NetlinkSocket, limit: int, seconds: float) -> None:
    """Make entries that the kernel does not drop early until the table is full, and keep it full for `seconds`.

    The kernel drops closing connections to make room, so new entries take freed room at once.
    """
    made, full_until = 0, 0.0
    for host in itertools.count():
        for batch in _entries(host % 250 + 1):
            if made >= limit:
                full_until = full_until or time.monotonic() + seconds
                if time.monotonic() > full_until:
                    return
            netlink.send(b"".join(batch))
            netlink.drain()
            made += len(batch)


def _entries(host: int) -> Iterator[list[bytes]]:
    """Build requests for entries of one address, in batches; each entry lives 30 seconds."""
    flags, status = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL, _SEEN | _ASSURED | _CONFIRMED
    local, remote, port = parse_address(f"198.51.100.{host}"), parse_address("203.0.113.1"), int.from_bytes(_PORT)
    flow = Flow(17, local, port, remote, 9, remote, 9, local, port, status=status, timeout=30)
    first, middle, last = encode_message(CT_NEW, flags, 0, encode_flow(flow)).split(_PORT)
    for begin in range(1024, 65536, 256):
        numbers = (number.to_bytes(2) for number in range(begin, begin + 256))
        yield [first + number + middle + number + last for number in numbers]
