"""Ranges of numbers and the choice of a free one. Pure; chance is a parameter.

The lower part of a range is for explicit choices; automatic ones use it only when the rest is full: KEP-3070 for
ClusterIPs, KEP-3668 for node ports.

    | static          | dynamic                                    |
      explicit first   automatic first

A number is drawn at random, so that a number just freed does not go to another client at once. After too many taken
draws, the part is walked from a random place over taken numbers, so the walk is never longer than the number of
objects.
"""

import contextlib
import ipaddress
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Draw: TypeAlias = Callable[[int], int]
"""Draws a number from 0 up to, not including, its argument."""
_DRAWS: Final = 16


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `first`, `size` of them; the first `static` ones are for explicit choices."""

    first: int
    size: int
    static: int

    def __contains__(self, number: int) -> bool:
        return self.first <= number < self.first + self.size

    def choose_free_number(self, taken: Callable[[int], bool], draw: Draw) -> int | None:
        """Choose a free number: of the dynamic part, else of the static one; None if all are taken."""
        parts = ((self.first + self.static, self.size - self.static), (self.first, self.static))
        for first, size in parts:
            chosen = _choose_in_part(first, size, taken, draw)
            if chosen is not None:
                return chosen
        return None


def address_range(network: Network) -> Range:
    """Return the usable addresses of a network: not its first, nor in IPv4 its last, the broadcast address."""
    ends = 2 if network.version == 4 else 1
    size = max(network.num_addresses - ends, 0)
    return Range(
        int(network.network_address) + 1, size, _static_part_size(network.num_addresses, size, step=16, most=256)
    )


def networks_of(cidr: Mapping[str, Any]) -> Iterator[Network]:
    spec = cidr.get("spec")
    listed = spec.get("cidrs") if isinstance(spec, dict) else None
    for text in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError):
            yield ipaddress.ip_network(str(text))


def port_range(first: int, last: int) -> Range:
    size = last - first + 1
    return Range(first, size, _static_part_size(size, size, step=32, most=128))


def _static_part_size(counted: int, size: int, *, step: int, most: int) -> int:
    """Return the size of the static part: min(max(16, counted / step), most), 0 for a small range."""
    return min(max(16, counted // step), most) if size > 16 else 0


def _choose_in_part(first: int, size: int, taken: Callable[[int], bool], draw: Draw) -> int | None:
    if not size:
        return None
    for _ in range(_DRAWS):
        if not taken(number := first + draw(size)):
            return number
    start = draw(size)
    steps = (first + (start + step) % size for step in range(size))
    return next((number for number in steps if not taken(number)), None)
