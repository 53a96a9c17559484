"""An API server for one proxy: lists are encoded once, watch events go to the socket at once.

    python -m bench.blackbox.api SERVICES ENDPOINTS

Prints its URL. Each line on its input is a command; the answer is when the first byte of the first event was written
(CLOCK_MONOTONIC). `move NUMBER` gives the probe's Service another endpoint, `burst COUNT NUMBER` gives as many
Services one new endpoint each. It is faster than the tests' API server, so that its time does not count as the
proxy's.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec
from bench.cluster import NODE, new_endpoint, node_object, with_new_endpoint
from tests.fakes.objects import service, service_cidr, slice_of

SLICES = "/apis/discovery.k8s.io/v1/endpointslices"
_KINDS = {
    "/api/v1/services": ("v1", "ServiceList"),
    SLICES: ("discovery.k8s.io/v1", "EndpointSliceList"),
    "/apis/networking.k8s.io/v1/servicecidrs": ("networking.k8s.io/v1", "ServiceCIDRList"),
    "/api/v1/nodes": ("v1", "NodeList"),
}


@dataclass(slots=True)
class Collection:
    """The objects of one kind as JSON, and their watchers. `items` are those at the start."""

    version: str
    kind: str
    items: list[bytes]
    watchers: list[asyncio.StreamWriter] = field(default_factory=list)

    def page(self, now: int, limit: int, first: int) -> bytes:
        end = first + limit if limit else len(self.items)
        meta = {"resourceVersion": str(now), "continue": str(end) if end < len(self.items) else ""}
        head = msgspec.json.encode({"apiVersion": self.version, "kind": self.kind, "metadata": meta})
        return head[:-1] + b',"items":[' + b",".join(self.items[first:end]) + b"]}"


class Api:
    """The server. Service number `services` is the probe's: it has one endpoint, which `move` replaces."""

    def __init__(self, services: int, endpoints: int) -> None:
        self._services, self._endpoints, self._now = services, endpoints, 1_000
        encode = msgspec.json.encode
        numbers = range(services + 1)
        objects = {
            "/api/v1/services": [encode(service(number)) for number in numbers],
            SLICES: [encode(slice_of(number, endpoints if number < services else 1)) for number in numbers],
            "/apis/networking.k8s.io/v1/servicecidrs": [encode(service_cidr("kubernetes", "10.96.0.0/12"))],
            "/api/v1/nodes": [encode(node_object())],
        }
        self._collections = {path: Collection(*_KINDS[path], items) for path, items in objects.items()}

    async def serve(self) -> None:
        """Serve, and execute the commands on the input."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=1 << 20)
        print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command, *numbers = line.decode().split()
            print(self._write(self._changed(command, *map(int, numbers))), flush=True)

    def _changed(self, command: str, *numbers: int) -> list[tuple[int, dict[str, Any]]]:
        if command == "move":
            return [(self._services, {**slice_of(self._services, 1), "endpoints": [new_endpoint(numbers[0])]})]
        count, first = numbers
        return [(index, with_new_endpoint(index, self._endpoints, first + index)) for index in range(count)]

    def _write(self, changed: list[tuple[int, dict[str, Any]]]) -> float:
        """Send changed slices to all watchers; later lists contain them too."""
        collection, lines = self._collections[SLICES], bytearray()
        for index, value in changed:
            self._now += 1
            value["metadata"]["resourceVersion"] = str(self._now)
            collection.items[index] = msgspec.json.encode(value)
            lines += b'{"type":"MODIFIED","object":' + collection.items[index] + b"}\n"
        began = time.monotonic()
        for writer in collection.watchers:
            writer.write(b"%x\r\n%b\r\n" % (len(lines), bytes(lines)))
        return began

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, _ = head.split(b" ", 2)
                fields = dict(_fields(head))
                await reader.readexactly(int(fields.get("content-length", 0)))
                self._answer(method.decode(), target.decode(), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            for collection in self._collections.values():
                collection.watchers = [each for each in collection.watchers if each is not writer]

    def _answer(self, method: str, target: str, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        collection = self._collections.get(parts.path)
        if method != "GET":  # an Event, which no test reads
            _send(writer, HTTPStatus.CREATED, b"{}")
        elif parts.path == f"/api/v1/nodes/{NODE}":
            _send(writer, HTTPStatus.OK, self._collections["/api/v1/nodes"].items[0])
        elif collection is None or "sendInitialEvents" in query:  # clients that ask for these fall back to a list
            _send(writer, HTTPStatus.UNPROCESSABLE_ENTITY, b'{"kind":"Status","reason":"Invalid","code":422}')
        elif query.get("watch") in ("true", "1"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            collection.watchers.append(writer)
        else:
            first = int(unquote(query.get("continue", "0")))
            _send(writer, HTTPStatus.OK, collection.page(self._now, int(query.get("limit", "0")), first))


def _fields(head: bytes) -> Iterator[tuple[str, str]]:
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        yield name.lower(), value.strip()


def _send(writer: asyncio.StreamWriter, status: HTTPStatus, body: bytes) -> None:
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(head.encode() + b"\r\n\r\n" + body)


if __name__ == "__main__":
    asyncio.run(Api(*map(int, sys.argv[1:])).serve())
