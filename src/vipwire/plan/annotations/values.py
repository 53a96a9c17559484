"""Parses the values of annotations. A ValueError says which values are allowed.

If parts of a list or map are invalid, the valid parts count, and each invalid part is a complaint. Values ignore case
and surrounding spaces.
"""

import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from vipwire.model.net import Address, Prefix, parse_address

E = TypeVar("E", bound=enum.Enum)
T = TypeVar("T")

HEAVIEST: Final = 100
SLOWEST_START: Final = 3600
LONGEST_DRAIN: Final = 86400
MOST_FAILURES: Final = 100
WHOLE: Final = 100
_MOST_PORT: Final = 65535
_LONGEST: Final = 60

SCHEDULERS: Final = ("rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf", "twos")
"""Every scheduler name that a Linux kernel has had for IPVS."""


class Reading(NamedTuple):
    """The value of a text, and complaints about its invalid parts."""

    value: object
    complaints: tuple[str, ...] = ()


Reader = Callable[[str], Reading]


class Balancing(enum.Enum):
    """The distribution of new connections, as `vipwire.io/algorithm` names it."""

    RANDOM = "random"
    ROUND_ROBIN = "round-robin"
    SOURCE_HASH = "source-hash"
    MAGLEV = "maglev"
    LEAST_CONNECTIONS = "least-connections"


class ForwardingMethod(enum.Enum):
    """How packets reach an endpoint: translated, unchanged (direct return), or in a tunnel."""

    NAT = "nat"
    DIRECT = "dsr"
    TUNNEL = "tunnel"


class SchedulerFlag(enum.Enum):
    """A flag of an IPVS scheduler. The scheduler defines the first three; for hashes they are fallback and port."""

    FIRST = "flag-1"
    SECOND = "flag-2"
    THIRD = "flag-3"
    ONE_PACKET = "ops"


class Scope(enum.Enum):
    """The scope of session affinity: one port, or all ports of the Service."""

    PORT = "port"
    SERVICE = "service"


_NUMBERED_FLAGS: Final = {each.value: each for each in SchedulerFlag if each is not SchedulerFlag.ONE_PACKET}
_FLAGS: Final = {
    **{each.value: each for each in SchedulerFlag},
    "mh-fallback": SchedulerFlag.FIRST,
    "sh-fallback": SchedulerFlag.FIRST,
    "mh-port": SchedulerFlag.SECOND,
    "sh-port": SchedulerFlag.SECOND,
}
_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_RANGE = re.compile(r"(?:([a-z0-9-]+)=)?(\d{1,5})-(\d{1,5})", re.ASCII)


def quote_text(text: str) -> str:
    """Quote a text for a message, cut to fit a line."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")


def _parse_word(text: str, what: str, allowed: Mapping[str, T]) -> T:
    try:
        return allowed[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{quote_text(text)} is no {what}; allowed: {', '.join(allowed)}") from None


def build_word_reader(what: str, allowed: Mapping[str, object]) -> Reader:
    """Return the reader of an enumerated word; `what` describes the value in errors."""
    return lambda text: Reading(_parse_word(text, what, allowed))


def build_enum_reader(what: str, kind: type[E]) -> Reader:
    return build_word_reader(what, {each.value: each for each in kind})


def read_list(read: Callable[[str], T], collect: Callable[[Iterable[T]], object]) -> Reader:
    def read_all(text: str) -> Reading:
        found: list[T] = []
        complaints: list[str] = []
        for part in text.split(","):
            try:
                found.append(read(part.strip()))
            except ValueError as error:
                complaints.append(str(error))
        return Reading(collect(found), tuple(complaints))

    return read_all


def _build_flag_reader(known: Mapping[str, SchedulerFlag]) -> Reader:
    return read_list(lambda word: _parse_word(word, "flag of a scheduler", known), frozenset)


scheduler: Final = build_word_reader("scheduler of the kernel", {name: name for name in SCHEDULERS})
scheduler_flags: Final = _build_flag_reader(_FLAGS)
numbered_flags: Final = _build_flag_reader(_NUMBERED_FLAGS)
prefixes: Final = read_list(Prefix.parse, tuple)


def parse_weights(text: str) -> Reading:
    """Read weights by endpoint address; invalid entries do not affect the others."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError(  # noqa: TRY004  # the text is wrong, not the caller
            'must be a JSON object of addresses and numbers, such as {"10.0.1.5": 3}'
        )
    found: dict[Address, int] = {}
    complaints: list[str] = []
    for address, weight in given.items():
        try:
            found.update((_parse_weight(address, weight),))
        except ValueError as error:
            complaints.append(str(error))
    return Reading(MappingProxyType(found), tuple(complaints))


def _parse_weight(address: str, weight: object) -> tuple[Address, int]:
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= HEAVIEST:
        why = f"{quote_text(str(weight))} is no weight; allowed: whole numbers from 0 to {HEAVIEST}"
        raise ValueError(f"{address[:_LONGEST]}: {why}")
    return parse_address(address), weight


def build_duration_reader(what: str) -> Reader:
    """Return the reader of a duration in minutes and seconds as seconds; `what` describes the value in errors."""

    def read(text: str) -> Reading:
        parts = _DURATION.fullmatch(text.strip())
        found = int(parts[1] or 0) * 60 + int(parts[2] or 0) if parts and len(text) < _LONGEST else 0
        if not 1 <= found <= SLOWEST_START:
            allowed = f"1s to {SLOWEST_START // 60}m, such as 30s or 1m30s"
            raise ValueError(f"{quote_text(text)} is no {what}; allowed: {allowed}")
        return Reading(found)

    return read


def parse_seconds(text: str) -> Reading:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and len(word) < _LONGEST and int(word) <= LONGEST_DRAIN):
        allowed = f"whole seconds from 0 to {LONGEST_DRAIN}, without a unit, such as 30"
        raise ValueError(f"{quote_text(text)} is no number of seconds; allowed: {allowed}")
    return Reading(int(word))


def build_count_reader(what: str, most: int) -> Reader:
    def read(text: str) -> Reading:
        word = text.strip()
        if not (word.isascii() and word.isdigit() and len(word) < _LONGEST and 1 <= int(word) <= most):
            raise ValueError(f"{quote_text(text)} is no {what}; allowed: whole numbers from 1 to {most}")
        return Reading(int(word))

    return read


def parse_port_ranges(text: str) -> Reading:
    """Read port ranges as (port name or "", (first, last)). A port with two ranges gets none."""
    found: dict[str, tuple[int, int]] = {}
    twice: set[str] = set()
    complaints: list[str] = []
    for part in text.split(","):
        words = _RANGE.fullmatch(part.strip())
        first, last = (int(words[2]), int(words[3])) if words else (0, 0)
        if words is None or not 1 <= first <= last <= _MOST_PORT:
            allowed = "10000-20000, or NAME=10000-20000,…"
            complaints.append(f"{quote_text(part.strip())} is no range of ports; allowed: {allowed}")
        elif (words[1] or "") in found:
            twice.add(words[1] or "")
            complaints.append(f"port {words[1] or '(unnamed)'} has two ranges")
        else:
            found[words[1] or ""] = first, last
    return Reading(tuple(each for each in found.items() if each[0] not in twice), tuple(complaints))
