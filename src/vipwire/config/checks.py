"""The rules that one value of the configuration must keep, whatever the others are.

A check yields what is allowed where a value is something else; `validation` has the rules between several values.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from vipwire.model.net import Prefix, parse_address
from vipwire.model.text import port_number
from vipwire.model.value import Value

Check = Callable[[Any], Iterable[str]]
PRIMARY: Final = "primary"
"""The word that stands in `nodePortAddresses` for the Node's own primary addresses."""


def must(allowed: Callable[[Any], bool], message: str) -> Check:
    """Make the check that says `message` where a value is not allowed."""
    return lambda value: () if allowed(value) else (message,)


def within(least: int, most: int) -> Check:
    """Make the check of a number between bounds."""
    return must(lambda value: least <= value <= most, f"must be within the range [{least}, {most}]")


class OneOf(Value, frozen=True):
    """The check of a word: one of those that `words` lists, or blank where `blank` says so."""

    words: Callable[[], tuple[str, ...]]
    message: str = "must be {}"
    blank: bool = False

    def __call__(self, value: str) -> Iterable[str]:
        """Yield what is allowed."""
        allowed = self.words()
        if value not in allowed and (value or not self.blank):
            yield self.message.format(", ".join(allowed))


def reads(read: Callable[[str], object], text: str) -> bool:
    """Report whether `read` takes a text without a ValueError."""
    try:
        read(text)
    except ValueError:
        return False
    return True


def cidr(text: str) -> Iterator[str]:
    """Check a CIDR."""
    if not reads(Prefix.parse, text):
        yield "must be a valid CIDR such as 10.0.0.0/8 or fd00::/64"


def cidr_or_primary(text: str) -> Iterable[str]:
    """Check an item of `nodePortAddresses`."""
    return () if text == PRIMARY else cidr(text)


def host_port(text: str) -> Iterator[str]:
    """Check the address of a server; empty means no such server."""
    match = re.fullmatch(r"\[(?P<v6>[^\]]*)\]:(?P<port6>.*)|(?P<v4>[^:]*):(?P<port4>[^:]*)", text)
    if text and match is None:
        yield "must be IP:port ([IP]:port for IPv6)"
    if not text or match is None:
        return
    host, port = match["v6"] or match["v4"] or "", match["port6"] or match["port4"] or ""
    if not reads(parse_address, host):
        yield f"{host!r} must be a valid IP"
    if port_number(port) is None:
        yield f"{port!r} must be a valid port, 1 to 65535"


def port_range(text: str) -> range | None:
    """Read `begin-end` (both inclusive), `begin+size` or one port; empty and `0-0` give an empty range: any port.

    None where the text is none of these. Source: apimachinery's ParsePortRange.
    """
    match = re.fullmatch(r"\s*(\d{1,5})(?:([-+])(\d{1,5}))?\s*", text, re.ASCII) if text.strip() else None
    if match is None:
        return None if text.strip() else range(0)
    first, last = int(match[1]), int(match[3] or match[1])
    if match[2] == "+":
        last += first
    if not first <= last <= 65535:
        return None
    return range(first, last + 1) if last else range(0)


def is_version(text: str) -> Iterator[str]:
    """Check the version of Kubernetes in a configuration."""
    if text and not re.fullmatch(r"\d+\.\d+", text):
        yield "must be omitted or be <major>.<minor>"


AT_LEAST_0: Final = must(lambda value: value >= 0, "must be greater than or equal to 0")
ABOVE_0: Final = must(lambda value: value > 0, "must be greater than 0")
