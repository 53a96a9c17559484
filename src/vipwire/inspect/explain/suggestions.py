"""Suggests Services, addresses and ports that are near to one that does not exist."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from vipwire.errors import ConfigError
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, format_address
from vipwire.model.service import Service

_MANY = 3


def find_services(services: Mapping[ObjectName, Service], text: str) -> list[Service]:
    """Find the Services that `name`, `namespace/name` or `namespace/name:port` means; raise ConfigError if none."""
    if not text:
        return [services[name] for name in sorted(services)]
    place, _, _ = text.partition(":")
    found = [services[name] for name in sorted(services) if place in (str(name), name.name)]
    if found:
        return found
    if place.endswith("/"):
        found = [services[name] for name in sorted(services) if name.namespace == place[:-1]]
    if not found:
        known = sorted(services)
        raise ConfigError(
            f"there is no Service {place!r}{meant(place, map(str, known), (each.name for each in known))}"
        )
    return found


def meant(text: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """Suggest words near to a text: "; near it: a, b", or all words if they are few.

    `others` are other words for the same things.
    """
    options = list(dict.fromkeys(known))
    close = difflib.get_close_matches(text, [*options, *dict.fromkeys(others)], _MANY, 0.6)
    if close:
        return f"; near it: {', '.join(close)}"
    if not options:
        return "; there is none at all"
    return f"; there is {', '.join(options)}" if len(options) <= 2 * _MANY else f"; there are {len(options)} others"


def listed(words: Sequence[str], most: int = 5) -> str:
    """Join words by commas; of many only the first, and how many there are more."""
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def similar_addresses(address: Address, owners: Mapping[Address, str]) -> list[str]:
    """Name the VIPs that look most like an address, with their Services."""
    text = format_address(address)
    known = {format_address(each): owner for each, owner in owners.items() if len(each) == len(address)}
    close = difflib.get_close_matches(text, known, _MANY, 0.7)
    return [f"{each} ({known[each]})" for each in close]
