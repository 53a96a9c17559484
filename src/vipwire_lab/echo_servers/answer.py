"""The answer of an echo server: who it is and whom it saw. One JSON object in one line.

"saw" is the heart of every test of source NAT: the address from which the packet came, as the Pod knows it.
"""

import json
from dataclasses import asdict, dataclass
from typing import Self

from vipwire.errors import DecodeError

HELLO = b"hello\n"
"""What a probe says first. Whatever it is, its first line is answered and not echoed."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One end of a connection."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The content of an answer: who answered, how, whom it saw and where. `node` is empty outside the cluster."""

    pod: str
    node: str
    protocol: str
    saw: Peer
    local: Peer

    def encode(self) -> bytes:
        """Write it as a line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Read a line; raise DecodeError if it is not what an echo server says."""
        try:
            value = json.loads(line)
            saw, local = (Peer(str(value[end]["address"]), int(value[end]["port"])) for end in ("saw", "local"))
            return cls(str(value["pod"]), str(value["node"]), str(value["protocol"]), saw, local)
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError(f"not the answer of an echo server: {line[:80]!r}") from error


def http_response(answer: Answer) -> bytes:
    """Wrap it up for a client that speaks HTTP, such as curl; the connection ends after it."""
    body = answer.encode()
    head = (
        "HTTP/1.1 200 OK\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
