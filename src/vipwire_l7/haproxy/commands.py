"""Writes the commands for HAProxy's socket that change its maps, servers and certificates. Pure.

Their order keeps requests right between any two commands.
"""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Final, TypeAlias

from vipwire.model.net import format_address
from vipwire_l7.haproxy.backends import SPARE_SLOTS, SPARES, get_current_weight
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.layout import FOLDER
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.haproxy.words import write_command_word, write_plain
from vipwire_l7.plan.sites import Server

LONGEST_PAYLOAD: Final = 12_000
"""The maximum length of a command in bytes: HAProxy's buffers have 16 KiB. A longer certificate needs a reload."""
SPARE: Final[Slots] = (None,) * SPARE_SLOTS
Maps: TypeAlias = dict[str, dict[str, str]]


def write_commands(live: Configuration, now: Configuration, before: Maps, gone: frozenset[str]) -> Iterator[str]:
    """Write the commands that replace the entries `before` by the entries of `now`, and remove `gone`."""
    placed = live.placed | now.placed
    yield from _write_certificate_changes(live, now)
    for name, slots in now.slots.items():
        had = SPARE if name in now.placed else live.slots[name]
        yield from _write_server_changes(placed.get(name, name), had, slots)
    yield from _write_spare_entries(live, now, gone)
    yield from _write_map_changes(live, now, before, placed)
    yield from _write_moves(live, now, before)
    for name in gone & live.slots.keys():
        yield from _write_server_changes(placed.get(name, name), live.slots[name], ())
    yield from _write_removals(live, now, gone)


def _write_server_changes(section: str, before: Slots, slots: Slots) -> Iterator[str]:
    if before != slots:
        for number, (old, new) in enumerate(zip_longest(before, slots), 1):
            if old != new:
                yield from _write_server_change(f"{write_plain(section)}/s{number}", old, new)


def _write_spare_entries(live: Configuration, now: Configuration, gone: frozenset[str]) -> Iterator[str]:
    """Write the pools in spare backends to the access log's map."""
    if live.layout.access_log:
        file = write_plain(live.layout.get_map_path(SPARES))
        for name in gone & live.placed.keys():
            yield f"del map {file} {write_plain(live.placed[name])}"
        for name, spare in now.placed.items():
            yield f"add map {file} {write_plain(spare)} {write_plain(name)}"


def _write_map_changes(
    live: Configuration, now: Configuration, before: Maps, placed: Mapping[str, str]
) -> Iterator[str]:
    there = live.shape.asked
    asked = [each for each in now.maps if each in there and before.get(each, {}) != now.maps[each]]
    for name in asked:
        entries, known, file = now.maps[name], before.get(name, {}), write_plain(now.layout.get_map_path(name))
        added = [f"{key} {placed.get(to, to)}\n" for key, to in entries.items() if key not in known]
        yield from (f"add map {file} <<\n{text}" for text in _join_payloads(added))
        for key, to in entries.items():
            if key in known and known[key] != to:
                yield f"set map {file} {write_command_word(key)} {write_plain(placed.get(to, to))}"
    for name in reversed(asked):
        file = write_plain(now.layout.get_map_path(name))
        gone = (key for key in before.get(name, {}) if key not in now.maps[name])
        yield from (f"del map {file} {write_command_word(key)}" for key in gone)


def _write_moves(live: Configuration, now: Configuration, before: Maps) -> Iterator[str]:
    """Lead the entries of a pool to its spare backend. Requests already in the old backend finish there."""
    moved = now.placed.keys() & live.slots.keys()
    for name in sorted(live.shape.asked & live.maps.keys()) if moved else ():
        entries, known = now.maps.get(name, {}), before.get(name, {})
        for key, to in live.maps[name].items():
            if to in moved and (key not in known or entries.get(key) == to):
                file, target = write_plain(live.layout.get_map_path(name)), write_plain(now.placed[to])
                yield f"set map {file} {write_command_word(key)} {target}"


def _write_certificate_changes(live: Configuration, now: Configuration) -> Iterator[str]:
    for name, pem in now.certificates.items():
        if live.certificates.get(name) == pem:
            continue
        file = write_plain(live.layout.get_path(name))
        if name not in live.certificates:
            yield f"new ssl cert {file}"
        yield f"set ssl cert {file} <<\n{pem}"
        yield f"commit ssl cert {file}"
    for name, lines in now.shape.lists.items():
        before = live.shape.lists.get(name)
        if before is not None and lines is not before:
            file = write_plain(f"{live.layout.folder}/{name}")
            for line in (line for each, line in lines.items() if each not in before):
                yield f"add ssl crt-list {file} <<\n{line.replace(FOLDER, live.layout.folder)}\n"


def _write_removals(live: Configuration, now: Configuration, gone: frozenset[str]) -> Iterator[str]:
    for name, lines in now.shape.lists.items():
        before = live.shape.lists.get(name, {})
        for each in (each for each in before if lines is not before and each not in lines):
            file = write_plain(live.layout.get_path(each))
            yield f"del ssl crt-list {write_plain(f'{live.layout.folder}/{name}')} {file}"
    for name in live.certificates.keys() & gone:
        yield f"del ssl cert {write_plain(live.layout.get_path(name))}"


def _write_server_change(name: str, old: Server | None, new: Server | None) -> Iterator[str]:
    if new is None:
        yield f"set server {name} state maint"
        return
    moved = old is None or (old.endpoint.address, old.port) != (new.endpoint.address, new.port)
    if moved:
        if old is not None:
            yield f"set server {name} state maint"
        yield f"set server {name} addr {format_address(new.endpoint.address)} port {new.port}"
    if old is None or get_current_weight(old) != get_current_weight(new):
        yield f"set server {name} weight {get_current_weight(new)}"
    if moved:
        yield f"set server {name} state ready"


def _join_payloads(lines: list[str]) -> Iterator[str]:
    """Join lines to payloads that fit into a command."""
    text = ""
    for each in lines:
        if len(text) + len(each) > LONGEST_PAYLOAD:
            yield text
            text = ""
        text += each
    if text:
        yield text
