"""Compares HAProxy's configuration with the wanted one, and plans commands and reasons for a reload. Pure.

The comparison covers everything, or only the hosts, pools and certificates that changed. Commands run at once while
the rest waits for a reload; a host waits as a whole.

A new pool with the plain policy uses a spare backend until the next reload. Unused parts may stay until then: a
backend without servers, a rule, a userlist. The order of commands: first new targets, then the entries that lead
there, then removals. Hosts are added last and removed first, so that no request finds a host without its paths.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from vipwire_l7.haproxy.backends import SPARE_SLOTS, fits_spare
from vipwire_l7.haproxy.choices import SHARES, find_shared_choices
from vipwire_l7.haproxy.commands import LONGEST_PAYLOAD, SPARE, Maps, write_commands
from vipwire_l7.haproxy.configuration import OWN_LIST, Configuration, make_maps
from vipwire_l7.haproxy.frontends import DEFAULT_KEY, split_site, write_frontend_parts
from vipwire_l7.haproxy.readings import APART
from vipwire_l7.haproxy.slots import Slots, count_used_slots
from vipwire_l7.plan.plan import HostPlan, build_site_plan
from vipwire_l7.plan.sites import ANSWERS, Frontend, find_path_sensitive

MOST_COMMANDS = 20_000
_HOSTS = frozenset({"sites", "listeners", APART})
"""The maps whose values are no targets."""
_REASONS = {
    "exact": "a first path of type Exact",
    "expressions": "a first regular expression",
    "wildcards": "a first host with a wildcard",
    "hostless": "a first rule without a host",
    "default": "a first default backend",
    APART: "a first host whose paths lead to different places",
    SHARES: "a first split by weight",
}
"""The reasons for a reload, by the search that the operator's frontend lacks (`Lookups.searches`)."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The possible changes: hosts with their old and new plan, pools, pools with other servers, certificates."""

    hosts: Mapping[str, tuple[HostPlan, HostPlan]] = field(default_factory=dict)
    pools: frozenset[str] = frozenset()
    certificates: frozenset[str] = frozenset()
    whole: bool = False
    """Whether everything may have changed."""

    def __bool__(self) -> bool:
        return self.whole or bool(self.hosts or self.pools or self.certificates)

    def merge_later(self, later: "Delta") -> "Delta":
        hosts = {**later.hosts}
        for site, (before, _) in self.hosts.items():
            hosts[site] = before, later.hosts[site][1] if site in later.hosts else self.hosts[site][1]
        certificates = self.certificates | later.certificates
        return Delta(hosts, self.pools | later.pools, certificates, self.whole or later.whole)


WHOLE = Delta(whole=True)


@dataclass(frozen=True, slots=True)
class Change:
    """The difference: `commands` for the stats socket, and the `reasons` for a reload, which `waiting` needs.

    After the commands HAProxy has `now` in place of the entries `before`, and the parts `gone` are removed.
    """

    commands: tuple[str, ...]
    reasons: tuple[str, ...]
    waiting: Delta
    before: Maps
    now: Configuration | None
    gone: frozenset[str]
    outgrown: frozenset[str] = frozenset()
    """The pools that need more servers than HAProxy has for them: one reason each."""

    def __bool__(self) -> bool:
        return bool(self.commands or self.reasons)


def compare_configurations(
    live: Configuration, wanted: Configuration, delta: Delta = WHOLE, kept_shares: frozenset[str] = frozenset()
) -> Change:
    """Compare the live configuration with the wanted one, limited to `delta`. Other hosts also use `kept_shares`."""
    return _Comparison(live, wanted, delta, kept_shares).make_change()


def record_change(live: Configuration, change: Change) -> None:
    now = change.now
    if now is None:
        return
    for name, entries in now.maps.items():
        there = live.maps.setdefault(name, {})
        for key in change.before.get(name, {}).keys() - entries.keys():
            del there[key]
        there.update(entries)
    for name in change.gone:
        live.certificates.pop(name, None)
        if live.placed.pop(name, ""):
            del live.slots[name], live.pools[name], live.shape.backends[name]
        elif name in live.slots:
            live.slots[name] = (None,) * len(live.slots[name])
    for name, slots in now.slots.items():
        had = SPARE if name in now.placed else live.slots[name]
        live.slots[name] = slots + (None,) * (len(had) - len(slots))
    live.pools.update(now.pools)
    live.placed.update(now.placed)
    live.certificates.update(now.certificates)
    live.shape.backends.update(now.shape.backends)
    live.shape.lists.update(now.shape.lists)
    live.shape.frontends.update(now.shape.frontends)


class _Comparison:
    def __init__(self, live: Configuration, wanted: Configuration, delta: Delta, kept_shares: frozenset[str]) -> None:
        self._live, self._wanted, self._delta, self._kept_shares = live, wanted, delta, kept_shares
        self._before = live.maps if delta.whole else _find_live_entries(delta, live, wanted)
        self._marks = {each.prefixes: mark for mark, each in wanted.shape.lookups.items()}
        self._reasons: list[str] = []
        self._closed = set[str]()
        """The marks of frontends that a reload must write again."""
        self._rules = set[tuple[str, str]]()
        """The choices that a reload must add, by mark and name."""
        self._moved = frozenset(_find_outgrown_pools(live, wanted))
        self._fresh = _place_pools(live, wanted, self._moved)
        self._moved &= self._fresh.keys()
        self._placed = live.placed | self._fresh
        self._judge_frontends()
        self._missing, self._outgrown = set[str](), set[str]()
        self._judge_pools()
        targets: dict[str, set[str]] = {}
        for key, to in wanted.maps[SHARES].items():
            targets.setdefault(_get_split_name(key), set()).add(to)
        self._shares = {name: all(self._is_known("", to) for to in found) for name, found in targets.items()}

    def make_change(self) -> Change:
        live, wanted, delta = self._live, self._wanted, self._delta
        certificates = tuple(self._list_certificate_reasons())
        self._reasons += certificates
        gone = (live.slots.keys() | live.certificates.keys()) if delta.whole else delta.pools | delta.certificates
        gone -= wanted.slots.keys() | wanted.certificates.keys()
        waiting = self._find_waiting_sites()
        served = {name: pool for name, pool in wanted.pools.items() if name not in self._missing}
        shape = replace(
            wanted.shape,
            backends={name: wanted.shape.backends[name] for name in served},
            lists={} if certificates else self._get_crt_lists(),
            frontends=dict(self._list_written_frontends(served_before=bool(certificates))),
        )
        now = replace(
            wanted,
            shape=shape,
            pools=served,
            slots={name: self._get_slots(name) for name in served},
            maps=self._select_entries(waiting),
            certificates={} if certificates else wanted.certificates,
            placed=self._fresh,
        )
        names = frozenset() if self._reasons else frozenset(gone)
        commands = tuple(write_commands(live, now, self._before, names))
        if len(commands) > MOST_COMMANDS:
            return Change((), (*self._reasons, "many changes"), delta, {}, None, frozenset())
        if not self._reasons:
            return Change(commands, (), Delta(), self._before, now, names)
        pools = frozenset(self._missing | self._outgrown | (gone & delta.pools))
        # Entries of expressions and of the default backend name no host: "" stands for every host of their frontend.
        unnamed = "" in waiting
        hosts = {
            site: pair
            for site, pair in delta.hosts.items()
            if site in waiting or (unnamed and not split_site(site)[1])
        }
        late = delta.certificates if certificates else delta.certificates & gone
        rest = Delta(hosts, pools, late, delta.whole)
        outgrown = frozenset(self._outgrown)
        return Change(commands, tuple(self._reasons), rest, self._before, now, names, outgrown)

    def _judge_frontends(self) -> None:
        old, new = self._live.shape, self._wanted.shape
        steps = sorted(self._find_reload_reasons())
        if steps:
            self._closed.add("")
        self._closed |= {mark for mark in new.frontends if not self._is_written(mark)}
        before, now = (dict(each.lookups[""].deciding) for each in (old, new))
        for mark, choices in new.choices.items():
            known = old.choices.get(mark, {})
            for name, choice in choices.items():
                if known.get(name) != choice or (not mark and before.get(name) != now.get(name)):
                    self._rules.add((mark, name))
        marks = self._closed | {mark for mark, _ in self._rules}
        gone = old.frontends.keys() - new.frontends.keys() if self._delta.whole else ()
        if "" in marks and not steps:
            self._reasons.append("the frontend changes")
        if gone or marks - {""}:
            self._reasons.append("a frontend changes")
        self._reasons += steps
        if not set(old.users.splitlines()).issuperset(new.users.splitlines()):
            self._reasons.append("users change")

    def _list_written_frontends(self, *, served_before: bool) -> Iterator[tuple[str, Frontend]]:
        """Yield the frontends that HAProxy has, with the wanted certificates or those `served_before`."""
        for mark, each in self._wanted.shape.frontends.items():
            if mark not in self._closed:
                before = self._live.shape.frontends[mark].certificates
                yield mark, replace(each, certificates=before) if served_before else each

    def _find_reload_reasons(self) -> Iterator[str]:
        old, new = self._live.shape.lookups[""], self._wanted.shape.lookups[""]
        yield from (_REASONS[each] for each in (new.searches - old.searches) & _REASONS.keys())
        if not self._before.get("expressions", {}).keys() >= self._wanted.maps["expressions"].keys():
            yield "regular expressions change"
        if not set(old.bounded).issuperset(new.bounded):
            yield "a first regular expression that guards"
        if self._live.layout != self._wanted.layout:
            yield "the frontend changes"

    def _is_written(self, mark: str) -> bool:
        """Report whether HAProxy has a frontend with the wanted rules, apart from choices."""
        old, new = self._live.shape, self._wanted.shape
        if mark not in old.frontends or old.lookups[mark] != new.lookups[mark]:
            return False
        before, now = (replace(each.frontends[mark], choices=(), certificates=()) for each in (old, new))
        if before == now:
            return True
        lookups, layout = new.lookups[mark], self._live.layout
        texts = [list(write_frontend_parts(each, lookups, (), layout)) for each in (before, now)]
        return texts[0] == texts[1]

    def _judge_pools(self) -> None:
        live, wanted = self._live, self._wanted
        for name, text in wanted.shape.backends.items():
            if live.shape.backends.get(name) != text and name not in self._placed:
                self._missing.add(name)
                self._reasons.append(f"{'another' if name in live.shape.backends else 'a new'} backend {name}")
            elif name not in self._moved and count_used_slots(wanted.slots[name]) > len(live.slots.get(name, SPARE)):
                self._outgrown.add(name)
                self._reasons.append(f"more servers for {name}")

    def _list_certificate_reasons(self) -> Iterator[str]:
        live, wanted = self._live, self._wanted
        for name, lines in wanted.shape.lists.items():
            before = live.shape.lists.get(name, {})
            if lines is before:
                continue
            if next(iter(lines)) != next(iter(before), ""):
                yield "the default certificate of a frontend changes"
            if any(before.get(each, line) != line for each, line in lines.items()):
                yield "the hosts of a certificate change"
        changed = (pem for name, pem in wanted.certificates.items() if live.certificates.get(name) != pem)
        if any(len(pem) > LONGEST_PAYLOAD for pem in changed):
            yield "a certificate is too long for a command"

    def _get_slots(self, name: str) -> Slots:
        """Return the servers of a pool, as many as HAProxy has slots for."""
        return self._wanted.slots[name][: len(SPARE if name in self._moved else self._live.slots.get(name, SPARE))]

    def _get_crt_lists(self) -> dict[str, dict[str, str]]:
        """Return the wanted crt-lists. For a partial change, they keep the other certificates."""
        lists, delta = self._wanted.shape.lists, self._delta
        if delta.whole:
            return lists
        if not delta.certificates:
            return {}
        others = {
            name: each for name, each in self._live.shape.lists[OWN_LIST].items() if name not in delta.certificates
        }
        return {OWN_LIST: others | lists[OWN_LIST]}

    def _is_known(self, mark: str, to: str) -> bool:
        """Report whether HAProxy has the wanted version of a target."""
        if to in self._wanted.pools:
            return to not in self._missing
        if to in self._wanted.shape.choices.get(mark, ()):
            return (mark, to) not in self._rules
        if to.startswith("choice:"):
            return self._shares.get(to, False)
        return to in ANSWERS or any(each.inner_target == to for each in self._live.shape.frontends.values())

    def _find_site(self, name: str, key: str, to: str) -> str:
        """Return the site of a map entry, or at least its mark."""
        host = key.partition("/")[0]
        if name == "sites":
            return to
        if name == "listeners":
            return f"{to}{split_site(key)[1]}"
        if name in self._marks:
            return f"{split_site(host)[0]}{self._marks[name]}"
        return "" if name in ("expressions", "default") else host

    def _find_waiting_sites(self) -> set[str]:
        found = set[str]()
        if not self._reasons:
            return found
        for name, entries in self._wanted.maps.items():
            before = self._before.get(name, {})
            if name == SHARES:
                continue
            for key, to in entries.items():
                site = self._find_site(name, key, to)
                mark = split_site(site)[1]
                is_known = name in _HOSTS or self._is_known(mark, to)
                if not is_known or (before.get(key) != to and mark in self._closed):
                    found.add(site)
            for key in before.keys() - entries.keys():
                site = self._find_site(name, key, before[key])
                if split_site(site)[1] in self._closed:
                    found.add(site)
        return found

    def _select_entries(self, waiting: set[str]) -> Maps:
        """Return the entries to set now: sites that wait keep theirs."""
        maps: Maps = {}
        for name, entries in self._wanted.maps.items():
            before = self._before.get(name, {})
            if name == SHARES:
                kept = {
                    key: to
                    for key, to in before.items()
                    if self._reasons or _get_split_name(key) in self._kept_shares
                }
                maps[name] = kept | {key: to for key, to in entries.items() if self._shares[_get_split_name(key)]}
            elif waiting:
                maps[name] = {k: to for k, to in before.items() if self._find_site(name, k, to) in waiting}
                maps[name] |= {k: to for k, to in entries.items() if self._find_site(name, k, to) not in waiting}
            else:
                maps[name] = entries
        return maps


def _get_split_name(key: str) -> str:
    return key.rpartition(":")[0]


def _find_live_entries(delta: Delta, live: Configuration, wanted: Configuration) -> Maps:
    """Return HAProxy's entries for the hosts of a change."""
    lookups = {mark: live.shape.lookups[mark] for mark in wanted.shape.frontends if mark in live.shape.lookups}
    frontends = [live.shape.frontends[mark] for mark in lookups]
    default = wanted.maps["default"].get(DEFAULT_KEY, "")
    plan = build_site_plan((before for before, _ in delta.hosts.values()), frontends, live.pools, default)
    shared = find_shared_choices(plan.all_choices)
    keys = make_maps(plan, lookups, find_path_sensitive(plan).sites, shared)
    there: Maps = {}
    for name in keys.keys() | wanted.maps.keys():
        known = live.maps.get(name, {})
        names = keys.get(name, {}).keys() | wanted.maps.get(name, {}).keys()
        there[name] = {key: known[key] for key in names if key in known}
    return there


def _find_outgrown_pools(live: Configuration, wanted: Configuration) -> Iterator[str]:
    """Return the pools that have too few slots and may move to a spare backend: no rule names them."""
    found = {
        name for name, slots in wanted.slots.items() if count_used_slots(slots) > len(live.slots.get(name, SPARE))
    }
    found -= live.placed.keys()
    if found:
        led = {to for rules in live.shape.choices.values() for choice in rules.values() for to in choice.targets}
        yield from (name for name in found - led if live.pools.get(name) == wanted.pools[name])


def _place_pools(live: Configuration, wanted: Configuration, moved: Collection[str]) -> dict[str, str]:
    """Choose spare backends for pools that are new or move, as long as a spare backend is free."""
    taken = frozenset(live.placed.values())
    free = (name for name in live.spares if name not in taken)
    new = (pool for name, pool in wanted.pools.items() if name not in live.shape.backends or name in moved)
    names = (
        each.name for each in new if fits_spare(each) and count_used_slots(wanted.slots[each.name]) <= SPARE_SLOTS
    )
    return dict(zip(names, free, strict=False))
