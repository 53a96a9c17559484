"""Ranges of numbers that are given away, and how one is chosen. Pure; chance is a parameter.

A range has a lower part that is kept for choices by hand, and is used for automatic ones only when the rest is full:
KEP-3070 for ClusterIPs, KEP-3668 for node ports.

    | static          | dynamic                                    |
      by hand first     automatic first

A number is drawn at random, so that one that was just given back is not given to another client at once. If that
meets taken ones too often, the part is walked through from a random place: what is walked is taken, so that the
walk is never longer than there are objects.
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
    """The numbers from `first`, `size` of them; the first `static` ones are for choices by hand."""

    first: int
    size: int
    static: int

    def __contains__(self, number: int) -> bool:
        """Report whether a number is one of the range."""
        return self.first <= number < self.first + self.size

    def choose(self, taken: Callable[[int], bool], draw: Draw) -> int | None:
        """Choose a free number: of the dynamic part, else of the static one; None if all are taken."""
        parts = ((self.first + self.static, self.size - self.static), (self.first, self.static))
        for first, size in parts:
            chosen = _choose(first, size, taken, draw)
            if chosen is not None:
                return chosen
        return None


def address_range(network: Network) -> Range:
    """Return the usable addresses of a network: not its first, nor in IPv4 its last, which is the broadcast."""
    ends = 2 if network.version == 4 else 1
    size = max(network.num_addresses - ends, 0)
    return Range(int(network.network_address) + 1, size, _static(network.num_addresses, size, step=16, most=256))


def networks_of(cidr: Mapping[str, Any]) -> Iterator[Network]:
    """Read a ServiceCIDR's ranges; what is none is left out."""
    spec = cidr.get("spec")
    listed = spec.get("cidrs") if isinstance(spec, dict) else None
    for text in listed if isinstance(listed, list) else ():
        with contextlib.suppress(ValueError):
            yield ipaddress.ip_network(str(text))


def port_range(first: int, last: int) -> Range:
    """Return the ports from first to last."""
    size = last - first + 1
    return Range(first, size, _static(size, size, step=32, most=128))


def _static(counted: int, size: int, *, step: int, most: int) -> int:
    """Return how much is kept for choices by hand: min(max(16, counted / step), most), nothing of a small range."""
    return min(max(16, counted // step), most) if size > 16 else 0


def _choose(first: int, size: int, taken: Callable[[int], bool], draw: Draw) -> int | None:
    if not size:
        return None
    for _ in range(_DRAWS):
        if not taken(number := first + draw(size)):
            return number
    start = draw(size)
    steps = (first + (start + step) % size for step in range(size))
    return next((number for number in steps if not taken(number)), None)
