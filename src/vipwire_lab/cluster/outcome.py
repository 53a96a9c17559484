"""Targets, options and results of probes.

Meaning for a service proxy: ANSWERED, the proxy chose an endpoint; REFUSED, a port without a listener or a reject
rule; TIMED_OUT, a drop rule (or no host); UNREACHABLE, the packet met no rule and no route.
"""

import enum
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, TypedDict

from vipwire.model.net import Protocol, format_address, format_endpoint, parse_address
from vipwire.model.text import port_number
from vipwire_lab.echo_servers.answer import Answer, SocketAddress
from vipwire_lab.namespaces.errors import LabError

MAX_COUNT = 100_000


class Outcome(enum.Enum):
    """The result of an attempt."""

    ANSWERED = "answered"
    REFUSED = "refused"
    TIMED_OUT = "timed out"
    RESET = "reset"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of an attempt."""

    address: str
    port: int
    protocol: Protocol = Protocol.TCP

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `10.0.0.1:80`, `[fd00::1]:80/udp`; raise LabError with the mistake."""
        place, _, protocol = text.partition("/")
        host, _, port = place.rpartition(":")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise LabError(f"{text!r} is not a destination: an IPv6 address needs brackets, as in [fd00::1]:80")
        number = port_number(port)
        if not host or number is None:
            raise LabError(f"{text!r} is not a destination: write ADDRESS:PORT with a port from 1 to 65535")
        if protocol.upper() not in ("", *Protocol.__members__):
            raise LabError(f"{text!r} is not a destination: {protocol!r} must be tcp, udp or sctp")
        return cls(_normalize_address(host.strip("[]")), number, Protocol[protocol.upper() or "TCP"])

    def __str__(self) -> str:
        return f"{format_endpoint(parse_address(self.address), self.port)}/{self.protocol.label}"


def _normalize_address(address: str) -> str:
    try:
        return format_address(parse_address(address))
    except ValueError as error:
        raise LabError(str(error)) from error


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """One attempt: `duration` in seconds, its `source` address, `errno` the kernel's or 0.

    `progress` says how far a timed-out TCP connection came: see `progress.progress`.
    """

    outcome: Outcome
    duration: float
    answer: Answer | None = None
    source: SocketAddress | None = None
    errno: int = 0
    progress: str = ""

    @property
    def pod(self) -> str:
        """The Pod that answered; "" without an answer."""
        return self.answer.pod if self.answer else ""

    @property
    def saw(self) -> str:
        """The client's address as the server saw it; "" without an answer."""
        return self.answer.saw.address if self.answer else ""

    def __str__(self) -> str:
        if self.answer:
            return f"{self.outcome.value} by {self.answer.pod}, which saw {self.answer.saw}"
        why = os.strerror(self.errno) if self.errno else self.progress
        return f"{self.outcome.value} ({why})" if why else self.outcome.value


class ProbeOptionWords(TypedDict, total=False):
    """`ProbeOptions` as keyword arguments."""

    source: str | None
    source_port: int | None
    timeout: float
    count: int
    parallel: int


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Source (by default the kernel's choice), timeout, number of attempts, and how many at a time.

    The kernel may have given a port from 32768 to 60999 to another socket (ip_local_port_range, ip(7)).
    """

    source: str | None = None
    source_port: int | None = None
    timeout: float = 1.0
    count: int = 1
    parallel: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.count <= MAX_COUNT:
            raise LabError(f"count is {self.count}; the count must be from 1 to {MAX_COUNT}")
        if self.timeout <= 0 or self.parallel < 1:
            raise LabError(f"timeout is {self.timeout} and parallel is {self.parallel}; both must be above 0")

    @property
    def at_a_time(self) -> int:
        """The most concurrent attempts: one if they share a port."""
        return 1 if self.source_port else min(self.parallel, 512)


def count_pods(results: Iterable[ProbeResult]) -> Counter[str]:
    """Count answers by Pod; unanswered attempts count by their outcome in brackets."""
    return Counter(result.pod or f"({result.outcome.value})" for result in results)
