"""Reads the fields of one object and collects problems.

One `Findings` per conversion. Each reader returns the valid part of a value and notes the rest with the field's path
as Kubernetes writes it. Of an object with thousands of broken entries, the first problems are told in full, then
their number.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, TypeVar

from vipwire.model.names import ObjectName
from vipwire.model.net import SPECIAL_FIRST_BYTES, Address, Prefix, Protocol, describe_special_use, parse_address
from vipwire.model.problem import Problem
from vipwire.model.times import parse_time

MOST_PROBLEMS = 20
"""Problems of one object that are told in full."""

_OCTETS: Final = {str(number): bytes((number,)) for number in range(256)}
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
_ALLOWED_PROTOCOLS = ", ".join(protocol.name for protocol in Protocol)

Choice = TypeVar("Choice", bound=Enum)


class Findings:
    """The problems of one object, in the order of reading."""

    __slots__ = ("_problems", "_untold", "kind", "name")

    def __init__(self, kind: str, name: ObjectName) -> None:
        self.kind = kind
        self.name = name
        self._problems: list[Problem] = []
        self._untold = 0

    def add_problem(self, field: str, message: str) -> None:
        """Add one problem; beyond `MOST_PROBLEMS`, only count it."""
        if len(self._problems) < MOST_PROBLEMS:
            self._problems.append(Problem(self.kind, self.name, field, message))
        else:
            self._untold += 1

    def problems(self) -> tuple[Problem, ...]:
        told = tuple(self._problems)
        if self._untold:
            told += (Problem(self.kind, self.name, "", f"{self._untold} more problems in this object"),)
        return told

    def address(self, field: str, text: str | None, *, local_use: bool = True) -> Address | None:
        """Read one unicast address.

        Refuses unspecified, loopback, multicast and broadcast addresses, which no proxy may serve. `local_use=False`
        refuses link-local ones too, as the API server does for endpoints and externalIPs.
        """
        ordinary = parse_ordinary_address(text or "")
        if ordinary is not None:
            return ordinary
        try:
            address = parse_address(text or "")
        except ValueError as error:
            self.add_problem(field, str(error))
            return None
        if special := describe_special_use(address, link_local=not local_use):
            self.add_problem(field, f"{text!r} is {special}, which cannot be an endpoint")
            return None
        return address

    def addresses(self, field: str, texts: Iterable[str], *, local_use: bool = True) -> tuple[Address, ...]:
        """Read a list of addresses; note invalid ones, drop duplicates."""
        if not texts:
            return ()
        found: dict[Address, None] = {}
        for index, text in enumerate(texts):
            address = parse_ordinary_address(text)
            if address is None:
                address = self.address(f"{field}[{index}]", text, local_use=local_use)
            if address is not None:
                found[address] = None
        return tuple(found)

    def prefixes(self, field: str, texts: Iterable[str]) -> tuple[Prefix, ...]:
        """Read a list of CIDRs; ignore surrounding spaces, note invalid ones."""
        found: dict[Prefix, None] = {}
        for index, text in enumerate(texts):
            try:
                found[Prefix.parse(text.strip())] = None
            except ValueError as error:
                self.add_problem(f"{field}[{index}]", str(error))
        return tuple(found)

    def protocol(self, field: str, text: str | None) -> Protocol | None:
        """Read a protocol; absent means TCP. None for an unknown one."""
        if not text:
            return Protocol.TCP
        try:
            return Protocol[text]
        except KeyError:
            self.add_problem(field, f"{text!r} is not a protocol (allowed: {_ALLOWED_PROTOCOLS})")
            return None

    def port(self, field: str, number: int | None) -> int | None:
        if number is not None and 0 < number < 65536:
            return number
        self.add_problem(field, "is missing" if number is None else f"{number} is not a port (allowed: 1 to 65535)")
        return None

    def choice(self, field: str, text: str | None, default: Choice) -> Choice:
        """Read an enum's value; absent or unknown gives `default`, unknown is noted."""
        if not text:
            return default
        members: Mapping[str, Choice] = _map_members_by_value(type(default))
        if (member := members.get(text)) is not None:
            return member
        self.add_problem(field, f"{text!r} is unknown (allowed: {', '.join(members)}): vipwire uses {default.value}")
        return default

    def timestamp(self, field: str, text: str | None) -> float | None:
        """Read an RFC 3339 time as seconds since the epoch; None if absent, or invalid (noted)."""
        if not text:
            return None
        try:
            return _parse_instant(text)
        except (ValueError, OverflowError):
            self.add_problem(field, f"{text!r} is not a time (RFC 3339)")
            return None

    def port_name(self, field: str, text: str | None) -> str | None:
        """Read a port's name, a DNS label or "": the kernel's comments and chain names contain it."""
        if not text or _LABEL.fullmatch(text):
            return text or ""
        self.add_problem(field, f"{_cut_text(text)!r} is not a DNS label of at most 63 characters")
        return None

    def named(self, *, namespaced: bool) -> bool:
        """Check the object's name as the API server does, so that it is safe in comments and scripts."""
        namespace, name = self.name
        if not _SUBDOMAIN.fullmatch(name):
            self.add_problem("metadata.name", f"{_cut_text(name)!r} is not a DNS subdomain of at most 253 characters")
            return False
        if namespaced and not is_label(namespace):
            self.add_problem(
                "metadata.namespace", f"{_cut_text(namespace)!r} is not a DNS label of at most 63 characters"
            )
            return False
        return True


def is_label(text: str) -> bool:
    """Report whether a text is a DNS label (RFC 1123, at most 63 characters)."""
    return len(text) <= 63 and _is_label(text)


@functools.lru_cache(maxsize=1024)
def _is_label(text: str) -> bool:
    return _LABEL.fullmatch(text) is not None


@functools.cache
def _map_members_by_value(choices: type[Enum]) -> Mapping[str, Any]:
    return {str(member.value): member for member in choices}


@functools.lru_cache(maxsize=1024)
def _parse_instant(text: str) -> float:
    return parse_time(text).timestamp()


def parse_ordinary_address(text: str) -> Address | None:
    """Read a usual IPv4 address, in a sixth of the time; None: call `Findings.address`."""
    beginning, _, last = text.rpartition(".")
    try:
        return Address(_read_first_octets(beginning) + _OCTETS[last])
    except (KeyError, ValueError):
        return None


@functools.lru_cache(maxsize=8192)
def _read_first_octets(text: str) -> bytes:
    """Read the first three octets, which a node's Pods share. Raise KeyError or ValueError."""
    first, second, third = (_OCTETS[octet] for octet in text.split("."))
    if first[0] in SPECIAL_FIRST_BYTES:
        raise ValueError
    return first + second + third


def _cut_text(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:80]}..."
