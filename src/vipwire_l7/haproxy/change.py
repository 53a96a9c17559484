"""The smallest change from what HAProxy has to what it is to have: runtime commands, or a reload.

A backend that nobody needs any more may stay until the next reload, without servers. So may users. Order: first what
requests could be led to, then where they are led, then what is left over.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from vipwire.model.net import format_address
from vipwire_l7.haproxy.backends import weight_of
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.haproxy.words import command_word, plain
from vipwire_l7.plan.sites import Server

MOST_COMMANDS = 20_000
LONGEST_PAYLOAD = 12_000
"""Bytes that a command may have, of the 16 KiB of HAProxy's buffers; a longer certificate needs a reload."""


@dataclass(frozen=True, slots=True)
class HaproxyChange:
    """The difference to apply: `commands` for the stats socket, or the `reason` for a reload."""

    commands: tuple[str, ...] = ()
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.commands or self.reason)


def difference(live: Configuration | None, desired: Configuration) -> HaproxyChange:
    """Compare what runs with what should."""
    if live is None:
        return HaproxyChange(reason="start")
    if reason := _needs_reload(live, desired):
        return HaproxyChange(reason=reason)
    commands = (
        *_certificates(live, desired),
        *_servers(live.slots, desired.slots, desired.slots),
        *_maps(live, desired),
        *_leftovers(live, desired),
    )
    return _unless_too_many(commands)


def difference_of_servers(
    live: Mapping[str, Slots], desired: Mapping[str, Slots], pools: Iterable[str]
) -> HaproxyChange:
    """Compare the slots of some pools, where nothing else can have changed: the others cost nothing."""
    return _unless_too_many(tuple(_servers(live, desired, pools)))


def pools_in_common(live: Configuration, desired: Configuration) -> tuple[str, ...]:
    """Name the pools whose servers can change by commands, also where something else needs a reload."""
    old, new = live.shape, desired.shape
    known = (name for name, text in new.backends.items() if old.backends.get(name) == text)
    return tuple(name for name in known if old.slots[name] == new.slots[name])


def _unless_too_many(commands: tuple[str, ...]) -> HaproxyChange:
    return HaproxyChange(reason="many changes") if len(commands) > MOST_COMMANDS else HaproxyChange(commands)


def merged(live: Configuration, desired: Configuration) -> Configuration:
    """Return what HAProxy has after the commands: also the backends that wait for the next reload."""
    left = {name: (None,) * len(slots) for name, slots in live.slots.items() if name not in desired.slots}
    shape = replace(
        desired.shape,
        stages=live.shape.stages,
        asked=live.shape.asked,
        backends={**desired.shape.backends, **{name: live.shape.backends[name] for name in left}},
        slots={**desired.shape.slots, **{name: len(slots) for name, slots in left.items()}},
        users=live.shape.users,
        bounded=live.shape.bounded,
    )
    pools = {**desired.pools, **{name: live.pools[name] for name in left}}
    return replace(desired, shape=shape, pools=pools, slots={**desired.slots, **left})


def _needs_reload(live: Configuration, desired: Configuration) -> str:
    """Return why commands are not enough; nothing when they are."""
    return next(_reasons(live, desired), "")


def _reasons(live: Configuration, desired: Configuration) -> Iterator[str]:
    old, new = live.shape, desired.shape
    if live.layout != desired.layout or old.choices != new.choices:
        yield "the frontend changes"
    if (old.frontends, old.lists, old.unlisted) != (new.frontends, new.lists, new.unlisted):
        yield "a frontend changes"
    yield from sorted(stage.value for stage in new.stages - old.stages)
    if old.expressions != new.expressions:
        yield "regular expressions change"
    if not set(old.bounded).issuperset(new.bounded):
        yield "a first regular expression that guards"
    for name, text in new.backends.items():
        if old.backends.get(name) != text:
            yield f"{'another' if name in old.backends else 'a new'} backend {name}"
        elif old.slots[name] != new.slots[name]:
            yield f"more servers for {name}"
    known = set(old.users.splitlines())
    if not known.issuperset(new.users.splitlines()):
        yield "users change"
    yield from _reasons_of_certificates(live, desired)


def _reasons_of_certificates(live: Configuration, desired: Configuration) -> Iterator[str]:
    old, new = live.shape, desired.shape
    if any(old.certificates.get(name, hosts) != hosts for name, hosts in new.certificates.items()):
        yield "the hosts of a certificate change"
    changed = (pem for name, pem in desired.certificates.items() if live.certificates.get(name) != pem)
    if any(len(pem) > LONGEST_PAYLOAD for pem in changed):
        yield "a certificate is too long for a command"


def _servers(live: Mapping[str, Slots], desired: Mapping[str, Slots], pools: Iterable[str]) -> Iterator[str]:
    for name in pools:
        before, slots = live[name], desired[name]
        if before == slots:
            continue
        for number, (old, new) in enumerate(zip(before, slots, strict=True), 1):
            if old != new:
                yield from _server(f"{plain(name)}/s{number}", old, new)


def _server(name: str, old: Server | None, new: Server | None) -> Iterator[str]:
    if new is None:
        yield f"set server {name} state maint"
        return
    moved = old is None or (old.endpoint.address, old.port) != (new.endpoint.address, new.port)
    if moved:
        if old is not None:
            yield f"set server {name} state maint"
        yield f"set server {name} addr {format_address(new.endpoint.address)} port {new.port}"
    if old is None or weight_of(old) != weight_of(new):
        yield f"set server {name} weight {weight_of(new)}"
    if moved:
        yield f"set server {name} state ready"


def _maps(live: Configuration, desired: Configuration) -> Iterator[str]:
    for name in (each for each in desired.maps if each in live.shape.asked):
        entries, before, file = desired.maps[name], live.maps[name], plain(desired.layout.map_file(name))
        if before == entries:
            continue
        added = [f"{key} {value}\n" for key, value in entries.items() if key not in before]
        yield from (f"add map {file} <<\n{text}" for text in _bundles(added))
        for key, value in entries.items():
            if key in before and before[key] != value:
                yield f"set map {file} {command_word(key)} {plain(value)}"
        yield from (f"del map {file} {command_word(key)}" for key in before if key not in entries)


def _bundles(lines: list[str]) -> Iterator[str]:
    """Join lines to texts that a command can carry."""
    text = ""
    for each in lines:
        if len(text) + len(each) > LONGEST_PAYLOAD:
            yield text
            text = ""
        text += each
    if text:
        yield text


def _certificates(live: Configuration, desired: Configuration) -> Iterator[str]:
    for name, pem in desired.certificates.items():
        if live.certificates.get(name) == pem:
            continue
        file, known = plain(desired.layout.certificate_file(name)), name in live.certificates
        if not known:
            yield f"new ssl cert {file}"
        yield f"set ssl cert {file} <<\n{pem}"
        yield f"commit ssl cert {file}"
        if not known:
            yield _listing(desired.layout, name, desired.shape.certificates[name])


def _listing(layout: Layout, name: str, hosts: tuple[str, ...]) -> str:
    text = " ".join((layout.certificate_file(name), *hosts))
    return f"add ssl crt-list {plain(layout.certificate_list)} <<\n{text}\n"


def _leftovers(live: Configuration, desired: Configuration) -> Iterator[str]:
    for name in live.slots.keys() - desired.slots.keys():
        for number, old in enumerate(live.slots[name], 1):
            if old is not None:
                yield f"set server {plain(name)}/s{number} state maint"
    for name in live.certificates.keys() - desired.certificates.keys():
        file = plain(desired.layout.certificate_file(name))
        yield f"del ssl crt-list {plain(desired.layout.certificate_list)} {file}"
        yield f"del ssl cert {file}"
