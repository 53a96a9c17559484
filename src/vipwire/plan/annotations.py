"""What a Service's annotations ask for beyond its spec. A bad value is a Problem, and counts as absent.

vipwire.io/algorithm               random (the default), round-robin, source-hash, maglev; least-connections where a
                                   mode counts connections, which others take for random
vipwire.io/proxy-protocol          v1, v2: tell endpoints who the client is; userspace mode only
vipwire.io/weights                 '{"10.0.1.5": 3}': by endpoint address, 0 to 100, 1 where absent; 0 drains
vipwire.io/affinity-scope          port (the default), service: one memory of a client for all ports of an address
vipwire.io/slow-start              30s: over so long an endpoint that joins grows to its full weight; see `slow_start`
vipwire.io/nodeport-source-ranges  CIDRs, separated by commas, that may use the node ports
vipwire.io/port-range              10000-20000, or NAME=10000-20000,…: ports served as one; see `ranges`
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Prefix, parse_address
from vipwire.model.problem import Problem
from vipwire.model.service import Service
from vipwire.plan.spread import Algorithm

PREFIX = "vipwire.io/"
LEAST_CONNECTIONS = "least-connections"
"""No algorithm of the plan: only modes that see connections end can do it. They find the word in the plan's hints."""
HEAVIEST = 100
MOST_PORT = 65535
SLOWEST_START = 3600
_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")


@dataclass(frozen=True, slots=True)
class Wishes:
    """The valid annotations of a Service. `weights` is empty when no endpoint has one.

    `slow_start` is in seconds, None without. `port_ranges` are (name of the port or "", (first, last)).
    """

    algorithm: Algorithm = Algorithm.RANDOM
    weights: Mapping[Address, int] = field(default_factory=lambda: MappingProxyType({}))
    shared_affinity: bool = False
    slow_start: int | None = None
    proxy_protocol: int = 0
    node_port_sources: tuple[Prefix, ...] = ()
    port_ranges: tuple[tuple[str, tuple[int, int]], ...] = ()
    problems: tuple[Problem, ...] = ()


NOTHING = Wishes()


def wishes(service: Service) -> Wishes:
    """Read a Service's annotations."""
    return _read(service.name, service.annotations) if service.annotations else NOTHING


@lru_cache(maxsize=1024)
def _read(name: ObjectName, annotations: tuple[tuple[str, str], ...]) -> Wishes:
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, text in annotations:
        reader = _READERS.get(key.removeprefix(PREFIX)) if key.startswith(PREFIX) else None
        if reader is None:
            continue
        wish, read = reader
        try:
            found[wish] = read(text)
        except ValueError as error:
            problems.append(Problem("Service", name, f"metadata.annotations[{key}]", str(error)))
    if found.get("slow_start") and found.get("algorithm") is Algorithm.SOURCE_HASH:
        # Every step would send clients of all endpoints elsewhere, which who asks for this algorithm does not want.
        del found["slow_start"]
        why = "has no effect with the algorithm source-hash"
        problems.append(Problem("Service", name, f"metadata.annotations[{PREFIX}slow-start]", why))
    return Wishes(**found, problems=tuple(problems))


def _algorithm(text: str) -> Algorithm:
    if text.strip() == LEAST_CONNECTIONS:
        return Algorithm.RANDOM
    try:
        return Algorithm(text.strip())
    except ValueError:
        allowed = ", ".join([*(algorithm.value for algorithm in Algorithm), LEAST_CONNECTIONS])
        raise ValueError(f"{text!r} is no algorithm; allowed: {allowed}") from None


def _weights(text: str) -> Mapping[Address, int]:
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(  # noqa: TRY004  # the text is wrong, not the caller
            'must be a JSON object of addresses and numbers, such as {"10.0.1.5": 3}'
        )
    return MappingProxyType(dict(_weight(address, weight) for address, weight in given.items()))


def _weight(address: str, weight: object) -> tuple[Address, int]:
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= HEAVIEST:
        raise ValueError(f"{address}: {weight!r} is no weight; allowed: whole numbers from 0 to {HEAVIEST}")
    return parse_address(address), weight


def _proxy_protocol(text: str) -> int:
    if text.strip() not in ("v1", "v2"):
        raise ValueError(f"{text!r} is no version of the PROXY protocol; allowed: v1, v2")
    return int(text.strip()[1])


def _scope(text: str) -> bool:
    if text.strip() not in ("port", "service"):
        raise ValueError(f"{text!r} is no scope; allowed: port, service")
    return text.strip() == "service"


def _seconds(text: str) -> int:
    parts = _DURATION.fullmatch(text.strip())
    seconds = int(parts[1] or 0) * 60 + int(parts[2] or 0) if parts else 0
    if not 1 <= seconds <= SLOWEST_START:
        allowed = f"1s to {SLOWEST_START // 60}m, such as 30s or 1m30s"
        raise ValueError(f"{text!r} is no time to start in; allowed: {allowed}")
    return seconds


def _prefixes(text: str) -> tuple[Prefix, ...]:
    return tuple(_parts(text))


def _parts(text: str) -> Iterator[Prefix]:
    for part in text.split(","):
        yield Prefix.parse(part.strip())


_RANGE = re.compile(r"(?:([a-z0-9-]+)=)?(\d{1,5})-(\d{1,5})", re.ASCII)


def _port_ranges(text: str) -> tuple[tuple[str, tuple[int, int]], ...]:
    found: dict[str, tuple[int, int]] = {}
    for part in text.split(","):
        words = _RANGE.fullmatch(part.strip())
        first, last = (int(words[2]), int(words[3])) if words else (0, 0)
        if words is None or not 1 <= first <= last <= MOST_PORT:
            raise ValueError(f"{part.strip()!r} is no range of ports; allowed: 10000-20000, or NAME=10000-20000,…")
        if (words[1] or "") in found:
            raise ValueError(f"port {words[1] or '(unnamed)'} has two ranges")
        found[words[1] or ""] = first, last
    return tuple(found.items())


_READERS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "algorithm": ("algorithm", _algorithm),
    "weights": ("weights", _weights),
    "affinity-scope": ("shared_affinity", _scope),
    "proxy-protocol": ("proxy_protocol", _proxy_protocol),
    "slow-start": ("slow_start", _seconds),
    "port-range": ("port_ranges", _port_ranges),
    "nodeport-source-ranges": ("node_port_sources", _prefixes),
}
