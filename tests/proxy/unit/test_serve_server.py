"""Servers in a task group: binding, trying again, failing hard."""

import asyncio
import socket
from collections.abc import Iterator

import aiohttp
import pytest

from vipwire.errors import UnsupportedError
from vipwire.http_server.pages import Pages
from vipwire.proxy_daemon.serve.server import HttpServer, open_listening_socket, split_address


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    with open_listening_socket("127.0.0.1", 0) as holder:
        yield holder


def _has_ipv6() -> bool:
    try:
        open_listening_socket("::1", 0).close()
    except OSError:
        return False
    return True


async def _code(host: str, port: int) -> int:
    name = f"[{host}]" if ":" in host else host
    async with aiohttp.ClientSession() as session, session.get(f"http://{name}:{port}/") as response:
        return response.status


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0", "[::]:0"])
async def test_a_server_listens_until_it_is_cancelled(text: str) -> None:
    if ":" in split_address(text)[0] and not _has_ipv6():
        pytest.skip("this machine's loopback has no IPv6")

    server = HttpServer("test", Pages(), text)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server.run())
        await server.listening.wait()
        host, port = server.bound
        assert await _code({"::": "::1", "0.0.0.0": "127.0.0.1"}.get(host, host), port) == 404
        task.cancel()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))


async def test_a_wildcard_of_ipv4_answers_on_ipv6_too() -> None:
    if not _has_ipv6():
        pytest.skip("this machine's loopback has no IPv6")

    server = HttpServer("test", Pages(), "0.0.0.0:0")
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server.run())
        await server.listening.wait()
        _, port = server.bound
        assert (await _code("127.0.0.1", port), await _code("::1", port)) == (404, 404)
        task.cancel()


async def test_a_port_that_is_taken_is_told_once_and_tried_again(taken: socket.socket) -> None:
    host, port = taken.getsockname()
    told: list[tuple[str, str]] = []
    failed = asyncio.Event()

    def remember(server: str, reason: str) -> None:
        told.append((server, reason))
        failed.set()

    server = HttpServer("metrics server", Pages(), f"{host}:{port}", remember, retry_seconds=0.001)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server.run())
        await failed.wait()
        taken.close()
        await server.listening.wait()
        assert server.bound == (host, port)
        task.cancel()
    assert told == [("metrics server", f"cannot listen on {host}:{port}: Address already in use")]


def test_a_hard_failure_ends_the_server(taken: socket.socket) -> None:
    host, port = taken.getsockname()
    server = HttpServer("healthz server", Pages(), f"{host}:{port}", hard_fail=True)
    with pytest.raises(UnsupportedError) as raised:
        asyncio.run(server.run())
    reason = f"healthz server: cannot listen on {host}:{port}: Address already in use"
    assert str(raised.value) == f"{reason} (--bind-address-hard-fail is set)"


@pytest.mark.parametrize(
    ("text", "parts"), [("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:10249", ("::1", 10249)), ("[::]:0", ("::", 0))]
)
def test_addresses_are_split(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text) == parts
