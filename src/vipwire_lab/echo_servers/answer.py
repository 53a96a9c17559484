"""The answer of an echo server: one JSON object in one line.

"saw" is the packet's source address as the Pod knows it; every test of source NAT needs it.
"""

import json
from dataclasses import asdict, dataclass
from typing import Self

from vipwire.errors import DecodeError

HELLO = b"hello\n"
"""A probe's first message. Servers answer any first line instead of echoing it."""


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """One end of a connection."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: the server, its protocol, the client it saw, its own address. `node` is "" outside the cluster."""

    pod: str
    node: str
    protocol: str
    saw: SocketAddress
    local: SocketAddress

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Parse a line; raise DecodeError if it is no echo server's."""
        try:
            value = json.loads(line)
            saw, local = (
                SocketAddress(str(value[end]["address"]), int(value[end]["port"])) for end in ("saw", "local")
            )
            return cls(str(value["pod"]), str(value["node"]), str(value["protocol"]), saw, local)
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"not the answer of an echo server: {line[:80]!r}") from error


def build_http_response(answer: Answer) -> bytes:
    """Return the answer as an HTTP response, for curl; the connection ends after it."""
    body = answer.encode()
    head = (
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
