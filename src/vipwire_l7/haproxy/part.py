"""The difference of some hosts and pools where all else is as it was: it costs what has changed. Pure.

Of both what HAProxy has and what it is to have, only the entries of these hosts are written and compared. Where more
than that may be another, such as a step of the search, all is compared instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vipwire_l7.haproxy.backends import backend_text
from vipwire_l7.haproxy.change import HaproxyChange, difference, spare_slots
from vipwire_l7.haproxy.configuration import Configuration, make_maps
from vipwire_l7.haproxy.frontend import stages_of
from vipwire_l7.haproxy.frontends import lookups_of, split_site
from vipwire_l7.haproxy.shares import SHARES, shared_choices
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.plan.plan import HostPlan
from vipwire_l7.plan.sites import Frontend, Match, Mode, Pool, SitePlan, apart_of


@dataclass(frozen=True, slots=True)
class Delta:
    """The hosts that have changed, each as it was and as it is, and the pools that have, or whose servers have."""

    pools: tuple[str, ...] = ()
    hosts: Mapping[str, tuple[HostPlan, HostPlan]] = field(default_factory=dict)
    every_pool: Mapping[str, Pool] = field(default_factory=dict)
    """All pools that there are."""
    frontends: Mapping[str, Frontend] = field(default_factory=dict)
    """By their marks."""
    default: str = ""
    shared: frozenset[str] = frozenset()
    """The splits that some host still comes to."""

    def then(self, later: "Delta") -> "Delta":
        """Return both changes as one."""
        hosts = {site: (before, later.hosts.get(site, ((), now))[1]) for site, (before, now) in self.hosts.items()}
        return replace(later, pools=(*self.pools, *later.pools), hosts={**later.hosts, **hosts})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what HAProxy has and is to have, and the difference."""

    before: Configuration
    now: Configuration
    change: HaproxyChange


def part_of(live: Configuration, delta: Delta, slots: Mapping[str, Slots]) -> Part | None:
    """Compare the hosts and pools of a change; None where commands may not be enough."""
    found = _maps_of_hosts(live, delta)
    if found is None:
        return None
    old, new = found
    led = {to for pair in delta.hosts.values() for host in pair for to in _targets(host)}
    names = {*delta.pools, *(led & live.placed.keys())}  # an entry has the name of the spare backend
    pools = {name: delta.every_pool[name] for name in names if name in delta.every_pool}
    placed = {name: live.placed[name] for name in names if name in live.placed}
    taken = frozenset(live.placed.values()) - frozenset(placed.values())
    shape = live.shape
    before = replace(
        live,
        shape=replace(shape, backends={name: shape.backends[name] for name in names if name in shape.backends}),
        pools={name: live.pools[name] for name in names if name in live.pools},
        slots={name: live.slots[name] for name in names if name in live.slots},
        maps=old,
        certificates={},
        spares=tuple(each for each in live.spares if each not in taken),
        placed=placed,
    )
    texts = {
        name: shape.backends[name] if live.pools.get(name) == pool else backend_text(pool, live.layout)
        for name, pool in pools.items()
    }
    now = replace(
        before,
        shape=replace(shape, backends=texts),
        pools=pools,
        slots={name: slots[name] for name in pools},
        maps=new,
    )
    change = difference(before, now)
    return Part(before, now, change) if not change.reason else None


def take_in(live: Configuration, part: Part) -> None:
    """Note that HAProxy has a part now."""
    before, now = part.before, part.now
    for name, entries in now.maps.items():
        there = live.maps[name]
        for key in before.maps[name].keys() - entries.keys():
            del there[key]
        there.update(entries)
    for name in before.slots.keys() - now.slots.keys():
        if live.placed.pop(name, ""):
            del live.slots[name], live.pools[name], live.shape.backends[name]
        else:
            live.slots[name] = (None,) * len(live.slots[name])
    for name, slots in now.slots.items():
        live.slots[name] = spare_slots(slots, live.slots.get(name))
        live.pools[name], live.shape.backends[name] = now.pools[name], now.shape.backends[name]
    live.placed.update(part.change.placed)


def _targets(host: HostPlan) -> set[str]:
    choices = (*host.choices, *host.shares)
    return {each.target for each in host.routes} | {target for each in choices for target in each.targets}


_Maps = dict[str, dict[str, str]]


def _maps_of_hosts(live: Configuration, delta: Delta) -> tuple[_Maps, _Maps] | None:
    """Give the entries of the hosts that HAProxy has, and those that it is to have."""
    old, new = _Maps(), _Maps()
    for site, (before, now) in delta.hosts.items():
        written = [_maps_of(site, host, live, delta) for host in (before, now)]
        for maps, entries in zip((old, new), written, strict=True):
            if entries is None:
                return None
            for name in entries:
                maps.setdefault(name, {}).update(entries[name])
    for key in old.get(SHARES, {}).keys() - new.get(SHARES, {}).keys():
        if key.rpartition(":")[0] in delta.shared:
            new.setdefault(SHARES, {})[key] = old[SHARES][key]
    names = old.keys() | new.keys()
    if not names <= live.maps.keys():
        return None
    there = {
        name: {
            key: live.maps[name][key]
            for key in old.get(name, {}).keys() | new.get(name, {}).keys()
            if key in live.maps[name]
        }
        for name in live.maps
        if name in names
    }
    return there, {name: new.get(name, {}) for name in there}


def _maps_of(site: str, host: HostPlan, live: Configuration, delta: Delta) -> _Maps | None:
    """Write the entries of one host, if what HAProxy looks for finds them."""
    mark = split_site(site)[1]
    frontend, lookups = delta.frontends.get(mark), live.shape.lookups.get(mark)
    if any(each.match is Match.EXPRESSION for each in host.routes):
        return None
    choices = (*host.choices, *host.shares)
    targets = _targets(host)
    pools = tuple(
        pool for name in targets if (pool := delta.every_pool.get(name) or live.pools.get(name)) is not None
    )
    shared = shared_choices(choices)
    if len(shared) < len(choices):
        return None
    plan = SitePlan(host.routes, pools, choices, default=delta.default)
    if not mark:
        apart = apart_of(plan)
        maps = make_maps(plan, (), apart.sites, shared)
        return maps if stages_of(maps) <= live.shape.stages else None
    if frontend is None or lookups is None or frontend.mode is Mode.TCP:
        return None
    plan = replace(plan, choices=(), frontends=(replace(frontend, choices=choices),))
    apart = apart_of(plan)
    needed = lookups_of(plan.frontends[0], plan.routes, apart, lookups.prefixes, shared)
    if replace(needed, deciding=lookups.deciding).kept(lookups) is not lookups:
        return None
    return make_maps(plan, (lookups,), apart.sites, shared)
