"""The relay to the API servers: it leads to one that answers, and to another when that one has gone."""

import asyncio
from collections.abc import Awaitable, Callable

from vipwire_up.joining.relay import Relay

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(word: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(word + await reader.readline())
        await writer.drain()
        await reader.read()
        writer.close()

    return serve


async def asked(url: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"who\n")
    answer = await reader.readline()
    writer.close()
    return answer


async def test_another_server_is_asked_when_one_has_gone_and_none_is_said_by_the_end_of_the_connection() -> None:
    servers = [await asyncio.start_server(saying(word), "127.0.0.1", 0) for word in (b"a ", b"b ")]
    urls = [f"https://127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers]
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        relay = tasks.create_task(Relay(lambda: urls).run(listening.set_result))
        url = await listening
        assert await asked(url) == b"a who\n"
        servers[0].close()
        assert await asked(url) == b"b who\n"
        assert await asked(url) == b"b who\n"
        servers[1].close()
        assert await asked(url) == b""
        relay.cancel()
