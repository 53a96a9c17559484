"""What the structs of matches and targets have in common. Pure.

Each is a name, a revision and a struct (include/uapi/linux/netfilter/xt_*.h and nf_nat.h), filled up to a multiple
of 8 bytes. The revisions are the newest that the kernel has, as iptables takes them. What another revision wrote
raises UnknownRuleError, and so does all else that is not ours.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from vipwire.model.net import Family
from vipwire.modes.xtables.binary.words import UnknownRuleError

LARGEST_PORT: Final = 0xFFFF


class Extension(NamedTuple):
    """A match or a target as the kernel keeps it."""

    name: str
    revision: int
    data: bytes


class Codec(NamedTuple):
    """The struct of one match or target: `read` takes its words and returns it, `write` is the way back."""

    revision: int
    size: int
    read: Callable[[Family, str], bytes]
    write: Callable[[Family, bytes], str]


def checked(read: Callable[[Family, str], bytes], family: Family, words: str, data: bytes) -> str:
    """Return words if they mean just these data."""
    if read(family, words).ljust(len(data), b"\0") != data:
        raise UnknownRuleError(f"more than these words say: {words!r}")
    return words


def known(words: Mapping[bytes, str], data: bytes) -> str:
    """Find the words of data; raise UnknownRuleError if there are none."""
    if data not in words:
        raise UnknownRuleError(f"nothing of ours: {data.hex()}")
    return words[data]


def text_of(data: bytes) -> str:
    """Read a text that fills its place with NULs."""
    return data.partition(b"\0")[0].decode("ascii", errors="replace")
