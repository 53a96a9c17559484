"""Listening to conntrack: only while somebody asks, and undisturbed by what the kernel has to drop."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest
from tests.fakes.conntrack import encode_flow
from tests.fakes.values import ip

from vipwire.linux.netlink.conntrack import CT_DELETE, CT_NEW, Flow
from vipwire.linux.netlink.message import NLM_F_CREATE, Message
from vipwire.linux.netlink.socket_filter import pass_new_and_ended_flows
from vipwire.model.net import Protocol
from vipwire.plan.ejection import EndpointKey, Failure, Tallies, Tally
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.proxy_daemon.sync.ejection_watch import EjectionWatch

POD = EndpointKey(Protocol.TCP, ip("10.0.0.7"), 8080)
FLOW = Flow(6, ip("10.0.0.1"), 4000, ip("10.96.0.1"), 80, POD.address, POD.port, ip("10.0.0.1"), 4000, identifier=7)


def begun_and_reset(identifier: int) -> list[Message]:
    payload = memoryview(encode_flow(FLOW._replace(identifier=identifier)))
    return [Message(CT_NEW, NLM_F_CREATE, 0, payload), Message(CT_DELETE, 0, 0, payload)]


class Kernel:
    """A socket whose messages are those of the test."""

    def __init__(self) -> None:
        self._mine, self._other = socket.socketpair()
        self.groups: list[int] = []
        self.program, self.closed, self.gone = b"", False, asyncio.Event()
        self._waiting: list[Message | OSError] = []

    def filter(self, program: bytes) -> None:
        self.program = program

    def join(self, group: int) -> None:
        self.groups.append(group)

    def fileno(self) -> int:
        return self._mine.fileno()

    def send(self, *messages: Message | OSError) -> None:
        self._waiting += messages
        self._other.send(b"!")

    def read_pending_messages(self, size: int) -> Iterator[Message]:
        assert size >= 1024
        with contextlib.suppress(BlockingIOError):
            self._mine.recv(100, socket.MSG_DONTWAIT)
        while self._waiting:
            message = self._waiting.pop(0)
            if isinstance(message, OSError):
                raise message
            yield message

    def close(self) -> None:
        self.closed = True
        self.gone.set()
        self._mine.close()
        self._other.close()


class World:
    """A watch, what is asked of it, the sockets that it has made, and what it has told."""

    def __init__(self) -> None:
        self.watch_version, self.asked = 0, frozenset[EndpointKey]()
        self.kernels: list[Kernel] = []
        self.told: asyncio.Queue[Tallies] = asyncio.Queue()
        self.metrics, self.refuse = Metrics("nftables"), False
        self.watch = EjectionWatch(self, self.metrics, self.told.put_nowait, self.made)

    def list_watched_endpoints(self) -> frozenset[EndpointKey]:
        return self.asked

    def made(self) -> Any:
        if self.refuse:
            raise PermissionError(errno.EPERM, "not permitted")
        self.kernels.append(Kernel())
        return cast("Any", self.kernels[-1])

    def ask(self, *endpoints: EndpointKey) -> None:
        self.watch_version, self.asked = self.watch_version + 1, frozenset(endpoints)
        self.watch.watch_named_endpoints()

    async def heard(self) -> Tallies:
        async with asyncio.timeout(60):
            return await self.told.get()


@contextlib.asynccontextmanager
async def watching() -> AsyncIterator[World]:
    world = World()
    try:
        yield world
    finally:
        world.watch.close()


async def test_there_is_a_socket_as_long_as_somebody_asks() -> None:
    async with watching() as world:
        world.watch.watch_named_endpoints()
        assert world.kernels == []
        world.ask(POD)
        kernel, asker = world.kernels
        assert (kernel.groups, kernel.program) == ([1, 3], pass_new_and_ended_flows([POD.address], [POD.protocol]))
        world.ask(POD, POD._replace(address=ip("10.0.0.8")))
        assert kernel.program == pass_new_and_ended_flows([POD.address, ip("10.0.0.8")], [POD.protocol])
        world.ask()
        assert (kernel.closed, asker.closed, len(world.kernels)) == (True, True, 2)


async def test_what_became_of_connections_is_told() -> None:
    async with watching() as world:
        world.ask(POD)
        world.kernels[0].send(*begun_and_reset(1), *begun_and_reset(2))
        assert await world.heard() == {POD: Tally(failures=2, last=Failure.RESET)}
        world.kernels[0].send(*begun_and_reset(3))
        assert await world.heard() == {POD: Tally(failures=1, last=Failure.RESET)}


async def test_lost_events_are_counted_and_what_is_known_goes_on() -> None:
    async with watching() as world:
        world.ask(POD)
        begun, ended = begun_and_reset(1)
        world.kernels[0].send(begun, OSError(errno.ENOBUFS, "no room"))
        world.kernels[0].send(ended)
        assert await world.heard() == {POD: Tally(failures=1, last=Failure.RESET)}
        assert world.metrics.registry.get_sample_value("vipwire_conntrack_events_lost_total") == 1


async def test_a_socket_that_fails_is_given_up() -> None:
    async with watching() as world:
        world.ask(POD)
        kernel = world.kernels[0]
        kernel.send(OSError(errno.ENETDOWN, "down"))
        async with asyncio.timeout(60):
            await kernel.gone.wait()
        world.ask(POD, POD._replace(port=1))
        assert len(world.kernels) == 2


async def test_what_is_not_understood_is_passed_over() -> None:
    async with watching() as world:
        world.ask(POD)
        world.kernels[0].send(Message(CT_NEW, NLM_F_CREATE, 0, memoryview(b"\x02\0\0\0")))
        world.kernels[0].send(*begun_and_reset(2))
        assert await world.heard() == {POD: Tally(failures=1, last=Failure.RESET)}


async def test_without_the_right_to_listen_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with watching() as world:
        world.refuse = True
        world.ask(POD)
        world.ask()
        world.ask(POD)
        assert world.kernels == []
    assert caplog.text.count("cannot receive conntrack events") == 1
