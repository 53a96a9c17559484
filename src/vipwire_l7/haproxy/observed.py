"""Reads the maps and servers that HAProxy really has, and corrects the record of them. Pure.

Another process may send commands to HAProxy's socket, or make HAProxy read its files again, which lack the changes
made by commands.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from vipwire.model.net import Address, format_address
from vipwire_l7.haproxy.backends import get_current_weight
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.words import write_plain
from vipwire_l7.plan.sites import Server
from vipwire_l7.watch.objects import BackendEndpoint, Usability

_IDLE, _DRAINING = 0x01 | 0x02 | 0x20 | 0x40, 0x08 | 0x10
"""Bits of a server's administrative state (management.txt 9.3, `show servers state`)."""
_COLUMNS = 19
_Observed: TypeAlias = tuple[str, str, str, int] | None
"""Address, port, weight and whether it drains; None for a server that takes no requests."""
_UNKNOWN = Server(BackendEndpoint(Address(bytes(4)), Usability.READY), 0, -1)
"""Stands in a slot for a server that vipwire did not set: it differs from all others."""


def write_state_commands(live: Configuration) -> list[str]:
    """Write the commands whose answers `correct_record` takes."""
    return [
        *(f"show map {write_plain(live.layout.get_map_path(name))}" for name in _list_asked_maps(live)),
        "show servers state",
    ]


def correct_record(live: Configuration, answers: Sequence[str]) -> list[str]:
    """Correct the record by HAProxy's answers; return the names of the parts that differed."""
    *maps, servers = answers
    pools = {spare: pool for pool, spare in live.placed.items()}
    found = [
        f"{name}.map {key}"
        for name, answer in zip(_list_asked_maps(live), maps, strict=True)
        for key in _correct_map(live.maps[name], _read_entries(answer), pools, live.placed)
    ]
    return found + list(_correct_slots(live, dict(_read_servers(servers))))


def _list_asked_maps(live: Configuration) -> list[str]:
    return sorted(live.shape.asked & live.maps.keys())


def _read_entries(answer: str) -> Iterator[tuple[str, str]]:
    for line in answer.splitlines():
        words = line.split(" ", 2)
        if len(words) == 3 and words[0].startswith("0x"):
            yield words[1], words[2]


def _correct_map(
    believed: dict[str, str],
    entries: Iterator[tuple[str, str]],
    pools: Mapping[str, str],
    placed: Mapping[str, str],
) -> Iterator[str]:
    seen = set[str]()
    for key, value in entries:
        seen.add(key)
        to = believed.get(key)
        if to is None or placed.get(to, to) != value:
            believed[key] = pools.get(value, value)
            yield key
    for key in believed.keys() - seen:
        del believed[key]
        yield key


def _read_servers(answer: str) -> Iterator[tuple[tuple[str, str], _Observed]]:
    for words in map(str.split, answer.splitlines()):
        if len(words) >= _COLUMNS and words[6].isascii() and words[6].isdigit():
            state = int(words[6][:6])
            known = words[4], words[18], words[7]
            yield (words[1], words[3]), None if state & _IDLE else (*known, state & _DRAINING)


def _correct_slots(live: Configuration, servers: Mapping[tuple[str, str], _Observed]) -> Iterator[str]:
    for name, slots in live.slots.items():
        section, made = live.placed.get(name, name), list(slots)
        for index, slot in enumerate(slots):
            if servers.get((section, f"s{index + 1}")) != _make_expected_state(slot):
                made[index] = _UNKNOWN if slot is None else None
                yield f"server {section}/s{index + 1}"
        live.slots[name] = tuple(made)


def _make_expected_state(slot: Server | None) -> _Observed:
    if slot is None:
        return None
    return format_address(slot.endpoint.address), str(slot.port), str(get_current_weight(slot)), 0
