"""The smallest change from what HAProxy has to what it is to have: runtime commands, or a reload.

A new pool of the plain policy takes a spare backend until the next reload. A backend that nobody needs any more may
stay until then, without servers. So may users. Order: first what requests could be led to, then where they are led,
then what is left over; hosts come last and go first, so that no request finds a host without its paths.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from vipwire.model.net import format_address
from vipwire_l7.haproxy.backends import SPARE_SLOTS, SPARES, fits_spare, weight_of
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.frontends import split_site
from vipwire_l7.haproxy.layout import FOLDER
from vipwire_l7.haproxy.shares import SHARES
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.haproxy.words import command_word, plain
from vipwire_l7.plan.sites import BROKEN, CLOSED, NOWHERE, REFUSED, UNAVAILABLE, Server

MOST_COMMANDS = 20_000
LONGEST_PAYLOAD = 12_000
"""Bytes that a command may have, of the 16 KiB of HAProxy's buffers; a longer certificate needs a reload."""
_SPARE: Slots = (None,) * SPARE_SLOTS
_ALWAYS = frozenset({UNAVAILABLE, CLOSED, BROKEN, REFUSED, NOWHERE})


@dataclass(frozen=True, slots=True)
class HaproxyChange:
    """The difference to apply: `commands` for the stats socket, or the `reason` for a reload.

    `placed` is which pools are in which spare backends after the commands.
    """

    commands: tuple[str, ...] = ()
    reason: str = ""
    placed: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.commands or self.reason)


def difference(live: Configuration | None, desired: Configuration) -> HaproxyChange:
    """Compare what runs with what should."""
    if live is None:
        return HaproxyChange(reason="start")
    placed = _placed(live, desired)
    if reason := next(_reasons(live, desired, placed), ""):
        return HaproxyChange(reason=reason)
    commands = (
        *_certificates(live, desired),
        *_servers(live, desired.slots, desired.slots, placed),
        *_notes(live, placed),
        *_maps(live, desired, placed),
        *_leftovers(live, desired),
    )
    return _unless_too_many(commands, placed)


def spare_slots(slots: Slots, before: Slots | None) -> Slots:
    """Return slots as HAProxy has them: it may have more than are needed. A pool that is new to it is in a spare."""
    return slots + (None,) * (len(_SPARE if before is None else before) - len(slots))


def possible(live: Configuration, desired: Configuration) -> Configuration:
    """Return what HAProxy can have of what is desired without a reload: a host that waits for one stays as it is."""
    old, new, placed = live.shape, desired.shape, _placed(live, desired)
    served = {
        name
        for name, text in new.backends.items()
        if name in placed or (old.backends.get(name) == text and len(desired.slots[name]) <= len(live.slots[name]))
    }
    lists = live if any(_reasons_of_certificates(live, desired)) else desired
    backends = {**old.backends, **{name: new.backends[name] for name in served}}
    return Configuration(
        live.layout,
        replace(old, backends=backends, lists=lists.shape.lists),
        {**live.pools, **{name: desired.pools[name] for name in served}},
        {**live.slots, **{name: desired.slots[name] for name in served}},
        _possible_maps(live, desired, served),
        lists.certificates,
        live.spares,
        live.placed,
    )


def _possible_maps(live: Configuration, desired: Configuration, served: set[str]) -> dict[str, dict[str, str]]:
    old, new = live.shape, desired.shape
    known = served | _ALWAYS | {each.name for each in old.choices} | {name for name, _ in old.frontends if name}
    shares = {key: to for key, to in desired.maps[SHARES].items() if to in known}
    known |= {key.rpartition(":")[0] for key in shares}
    known -= {key.rpartition(":")[0] for key in desired.maps[SHARES].keys() - shares.keys()}
    closed = {mark for mark, found in new.lookups.items() if old.lookups.get(mark) != found}
    if new.stages - old.stages or old.expressions != new.expressions or old.bounded != new.bounded:
        closed.add("")
    waiting = {
        _site(name, key, to)
        for name, entries in desired.maps.items()
        if name not in _HOSTS
        for key, to in entries.items()
        if to not in known and live.maps.get(name, {}).get(key) != to
    }

    def waits(name: str, key: str, to: str) -> bool:
        site = _site(name, key, to)
        return site in waiting or split_site(site)[1] in closed

    maps = {**live.maps, SHARES: {**live.maps[SHARES], **shares}}
    for name in (each for each in desired.maps if each in old.asked and each != SHARES):
        before = {key: to for key, to in live.maps[name].items() if waits(name, key, to)}
        maps[name] = before | {key: to for key, to in desired.maps[name].items() if not waits(name, key, to)}
    return maps


_HOSTS = frozenset({"sites", "listeners", "apart", SHARES})
"""The maps whose values are no targets."""


def _site(name: str, key: str, to: str) -> str:
    return to if name == "sites" else key.partition("/")[0]


def _placed(live: Configuration, desired: Configuration) -> dict[str, str]:
    """Choose spare backends for new pools, as far as there are any; the others keep theirs."""
    placed = {name: spare for name, spare in live.placed.items() if name in desired.pools}
    taken = frozenset(live.placed.values())
    free = (name for name in live.spares if name not in taken)
    new = (pool for name, pool in desired.pools.items() if name not in live.shape.backends)
    wanted = (each.name for each in new if fits_spare(each) and len(desired.slots[each.name]) <= SPARE_SLOTS)
    return placed | dict(zip(wanted, free, strict=False))


def _unless_too_many(commands: tuple[str, ...], placed: dict[str, str]) -> HaproxyChange:
    many = len(commands) > MOST_COMMANDS
    return HaproxyChange(reason="many changes") if many else HaproxyChange(commands, placed=placed)


def merged(live: Configuration, desired: Configuration, placed: dict[str, str]) -> Configuration:
    """Return what HAProxy has after the commands: also the backends that wait for the next reload."""
    left = {
        name: (None,) * len(slots)
        for name, slots in live.slots.items()
        if name not in desired.slots and name not in live.placed
    }
    shape = replace(
        desired.shape,
        stages=live.shape.stages,
        asked=live.shape.asked,
        backends={**desired.shape.backends, **{name: live.shape.backends[name] for name in left}},
        users=live.shape.users,
        bounded=live.shape.bounded,
    )
    pools = {**desired.pools, **{name: live.pools[name] for name in left}}
    slots = {name: spare_slots(slots, live.slots.get(name)) for name, slots in desired.slots.items()}
    return replace(desired, shape=shape, pools=pools, slots=slots | left, spares=live.spares, placed=placed)


def _reasons(live: Configuration, desired: Configuration, placed: Mapping[str, str]) -> Iterator[str]:
    """Say why commands are not enough, if they are not."""
    old, new = live.shape, desired.shape
    if live.layout != desired.layout or old.choices != new.choices:
        yield "the frontend changes"
    if old.frontends != new.frontends:
        yield "a frontend changes"
    yield from sorted(stage.value for stage in new.stages - old.stages)
    if old.expressions != new.expressions:
        yield "regular expressions change"
    if not set(old.bounded).issuperset(new.bounded):
        yield "a first regular expression that guards"
    for name, text in new.backends.items():
        if old.backends.get(name) != text and name not in placed:
            yield f"{'another' if name in old.backends else 'a new'} backend {name}"
        elif len(desired.slots[name]) > len(live.slots.get(name, _SPARE)):
            yield f"more servers for {name}"
    known = set(old.users.splitlines())
    if not known.issuperset(new.users.splitlines()):
        yield "users change"
    yield from _reasons_of_certificates(live, desired)


def _reasons_of_certificates(live: Configuration, desired: Configuration) -> Iterator[str]:
    if live.shape.lists.keys() != desired.shape.lists.keys():
        yield "a frontend changes"
    for name, lines in desired.shape.lists.items():
        before = live.shape.lists.get(name, ())
        if lines is before:
            continue
        if lines[:1] != before[:1]:
            yield "the default certificate of a frontend changes"
        known = {line.partition(" ")[0]: line for line in before}
        if any(known.get(line.partition(" ")[0], line) != line for line in lines):
            yield "the hosts of a certificate change"
    changed = (pem for name, pem in desired.certificates.items() if live.certificates.get(name) != pem)
    if any(len(pem) > LONGEST_PAYLOAD for pem in changed):
        yield "a certificate is too long for a command"


def _servers(
    live: Configuration, desired: Mapping[str, Slots], pools: Iterable[str], placed: Mapping[str, str]
) -> Iterator[str]:
    for name in pools:
        before, slots = live.slots.get(name, _SPARE), desired[name]
        if before == slots:
            continue
        section = plain(placed.get(name, name))
        for number, (old, new) in enumerate(zip_longest(before, slots), 1):
            if old != new:
                yield from _server(f"{section}/s{number}", old, new)


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


def _notes(live: Configuration, placed: Mapping[str, str]) -> Iterator[str]:
    """Tell the access log which pool is in a spare backend."""
    if live.layout.access_log:
        file = plain(live.layout.map_file(SPARES))
        for name in live.placed.keys() - placed.keys():
            yield f"del map {file} {plain(live.placed[name])}"
        for name in placed.keys() - live.placed.keys():
            yield f"add map {file} {plain(placed[name])} {plain(name)}"


def _maps(live: Configuration, desired: Configuration, placed: Mapping[str, str]) -> Iterator[str]:
    asked = [each for each in desired.maps if each in live.shape.asked and live.maps[each] != desired.maps[each]]
    for name in asked:
        entries, before, file = desired.maps[name], live.maps[name], plain(desired.layout.map_file(name))
        added = [f"{key} {placed.get(to, to)}\n" for key, to in entries.items() if key not in before]
        yield from (f"add map {file} <<\n{text}" for text in _bundles(added))
        for key, to in entries.items():
            if key in before and before[key] != to:
                yield f"set map {file} {command_word(key)} {plain(placed.get(to, to))}"
    for name in reversed(asked):
        file = plain(desired.layout.map_file(name))
        gone = (key for key in live.maps[name] if key not in desired.maps[name])
        yield from (f"del map {file} {command_word(key)}" for key in gone)


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
    for name, lines in desired.shape.lists.items():
        if lines is live.shape.lists[name]:
            continue
        file, before = plain(f"{desired.layout.folder}/{name}"), frozenset(live.shape.lists[name])
        for line in (each.replace(FOLDER, desired.layout.folder) for each in lines if each not in before):
            yield f"add ssl crt-list {file} <<\n{line}\n"


def _leftovers(live: Configuration, desired: Configuration) -> Iterator[str]:
    for name in live.slots.keys() - desired.slots.keys():
        section = plain(live.placed.get(name, name))
        for number, old in enumerate(live.slots[name], 1):
            if old is not None:
                yield f"set server {section}/s{number} state maint"
    for name, lines in live.shape.lists.items():
        if lines is desired.shape.lists[name]:
            continue
        kept = frozenset(desired.shape.lists[name])
        for line in (each for each in lines if each not in kept):
            file = plain(line.partition(" ")[0].replace(FOLDER, live.layout.folder))
            yield f"del ssl crt-list {plain(f'{live.layout.folder}/{name}')} {file}"
    for name in live.certificates.keys() - desired.certificates.keys():
        yield f"del ssl cert {plain(live.layout.certificate_file(name))}"
