"""What comes to one address and port: its listeners, what routes bring there, the frontends that come of it. Pure.

A port has one frontend. Only where listeners end TLS in one way and others in another, or hand it on, it has one for
each way: clients come to the one that hands on, which leads them to the others by the name that they ask for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vipwire_l7.gateway.plan.attach import Attachment, isolated
from vipwire_l7.gateway.plan.kinds.hostnames import breadth
from vipwire_l7.gateway.plan.ladders import Entry, routes_of
from vipwire_l7.gateway.plan.listeners import TLS_MODES, Listener
from vipwire_l7.gateway.plan.matches import ALL
from vipwire_l7.gateway.plan.steps import HostSteps, rules_of
from vipwire_l7.gateway.plan.tls.clients import ClientCheck
from vipwire_l7.plan.budget import steps_for
from vipwire_l7.plan.expressions import steps_of
from vipwire_l7.plan.sites import CLOSED, EVERY_HOST, Choice, Frontend, Match, Mode, Route

_WAYS = {Mode.HTTPS: ":https", Mode.TLS_ENDED: ":tls"}
"""What the marks of frontends that another one leads to end with."""
Made = tuple[Frontend, tuple[Route, ...]]


@dataclass(slots=True)
class Way:
    """The listeners of one mode at a port, and what routes have brought them, by host."""

    mode: Mode
    listeners: list[Listener] = field(default_factory=list)
    entries: dict[str, list[Entry]] = field(default_factory=dict)
    steps: dict[str, HostSteps] = field(default_factory=dict)

    @property
    def clients(self) -> ClientCheck | None:
        """What is asked of clients' certificates: the same by all listeners, so of the first."""
        return self.listeners[0].clients if self.listeners else None


@dataclass(frozen=True, slots=True)
class Brought:
    """What a route brings to a host. `site` is that with the frontend's mark."""

    way: Way
    host: str
    site: str
    entries: Sequence[Entry]
    rules: HostSteps

    def cost(self) -> int:
        """Count the rules of HAProxy that come with it."""
        return self.way.steps.get(self.host, HostSteps()).cost(self.rules)

    def steps(self) -> int:
        """Estimate what a request takes that comes to none of it, as steps of PCRE."""
        paths = (each.match.path for each in self.entries)
        conditions = (condition for each in self.entries for condition in each.match.conditions)
        return sum(steps_of(each.path) for each in paths if each.match is Match.EXPRESSION) + steps_for(conditions)

    def closed(self, is_guarded: Callable[[str], bool]) -> "Brought":
        """Close what is guarded here, and leave out all else."""
        closed = tuple(each.closed() for each in self.entries if is_guarded(each.target))
        return replace(self, entries=closed, rules=rules_of(closed))

    def closed_whole(self) -> "Brought":
        """Close all of the host that has no other match."""
        closed = (replace(self.entries[0], match=ALL, target=CLOSED),)
        return replace(self, entries=closed, rules=rules_of(closed))

    def put(self) -> None:
        """Put it beside what others have brought."""
        self.way.entries.setdefault(self.host, []).extend(self.entries)
        self.way.steps.setdefault(self.host, HostSteps()).add(self.rules)


@dataclass(slots=True)
class SharedPort:
    """An address and port. `mark` is what the hosts of its frontend end with."""

    bind: str
    mark: str
    ways: dict[Mode, Way] = field(default_factory=dict)
    hosts: dict[str, set[Mode]] = field(default_factory=dict)
    """Of all listeners, with their modes."""

    def objection(self, listener: Listener) -> str:
        """Say why a listener cannot be here beside those of older Gateways; "" if it can."""
        modes = {*self.ways, listener.mode}
        if len(modes) > 1 and not modes <= TLS_MODES:
            return f"port {listener.port} has another protocol for an older Gateway at the same address"
        if self.hosts.get(listener.host, set()) - {listener.mode}:
            return f"port {listener.port} has another protocol for this host, by an older Gateway at the same address"
        way = self.ways.get(listener.mode)
        if way is not None and way.clients != listener.clients:
            return f"port {listener.port} asks for other certificates of clients for an older Gateway"
        return ""

    def add(self, listener: Listener) -> None:
        """Add a listener."""
        self.ways.setdefault(listener.mode, Way(listener.mode)).listeners.append(listener)
        self.hosts.setdefault(listener.host, set()).add(listener.mode)

    def brought(self, attachment: Attachment, entries: Sequence[Entry]) -> Iterator[Brought]:
        """Yield what a route brings to the hosts of a listener that was added."""
        way, more = self.ways[attachment.listener.mode], rules_of(entries)
        for host in isolated(attachment, self.hosts):
            own = attachment.hosts[host]
            ranked = entries if own == host else [replace(each, breadth=breadth(own)) for each in entries]
            yield Brought(way, host, f"{host}{self.mark}", ranked, more)

    def made(self, shares: Mapping[str, Choice]) -> Iterator[Made]:
        """Build the frontends, the one that clients come to first; `shares` are the choices by weight."""
        if len(self.ways) == 1:
            yield from (self._made(way, self.mark, self.bind, shares) for way in self.ways.values())
            return
        frontend, routes = self._made(self.ways.get(Mode.TLS) or Way(Mode.TLS), self.mark, self.bind, shares)
        inner = [
            (self._made(way, f"{self.mark}{_WAYS[mode]}", "", shares), way)
            for mode, way in sorted(self.ways.items(), key=lambda each: each[0].value)
            if mode is not Mode.TLS
        ]
        yield frontend, (*routes, *self._led([(each.inner_target, way) for (each, _), way in inner]))
        yield from (found for found, _ in inner)

    def _led(self, inner: Iterable[tuple[str, Way]]) -> Iterator[Route]:
        """Lead the hosts of listeners that end TLS to their frontends, and there too who asks for no host of ours."""
        hosts = set(self.hosts)
        for target, way in inner:
            first = way.listeners[0].owner
            own = {each.host: each.owner for each in way.listeners}
            if EVERY_HOST not in hosts:
                own[EVERY_HOST] = first
                hosts.add(EVERY_HOST)
            for host, owner in own.items():
                yield Route(f"{host}{self.mark}", Match.PREFIX, "", target, owner.name, owner.kind.value)

    def _made(self, way: Way, mark: str, bind: str, shares: Mapping[str, Choice]) -> Made:
        routes: list[Route] = []
        choices: dict[str, Choice] = {}
        for host, entries in way.entries.items():
            found, more = routes_of(f"{host}{mark}", entries)
            routes += found
            choices |= {each.name: each for each in more}
        used = _used(choices.values(), way.entries.values(), shares)
        first = next((entries[0].target for entries in way.entries.values() if entries), "")
        frontend = Frontend(
            f"gateway{mark}",
            bind,
            mark,
            way.mode,
            _listed(way.listeners),
            any(each.host == EVERY_HOST and each.certified.certificates for each in way.listeners),
            (*choices.values(), *used),
            first if way.mode is Mode.TCP else "",
            frozenset() if way.mode is Mode.TCP else frozenset(self.hosts),
            *((clients.file, clients.optional) if (clients := way.clients) else ()),
        )
        return frontend, tuple(routes)


def _listed(listeners: Iterable[Listener]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """List the certificates of a frontend with their hosts: those for all hosts first, which is the default."""
    found: dict[str, dict[str, None]] = {}
    for listener in sorted(listeners, key=lambda each: each.host != EVERY_HOST):
        for certificate in listener.certified.certificates:
            hosts = certificate.hosts if listener.host == EVERY_HOST else (listener.host,)
            found.setdefault(certificate.name, {}).update(dict.fromkeys(hosts))
    return tuple((name, tuple(hosts)) for name, hosts in found.items())


def _used(
    choices: Iterable[Choice], entries: Iterable[Iterable[Entry]], shares: Mapping[str, Choice]
) -> tuple[Choice, ...]:
    """Return the shares by weight that routes lead to, after all choices that may lead there."""
    named = {target for choice in choices for target in choice.targets}
    named |= {entry.target for found in entries for entry in found}
    return tuple(share for name, share in shares.items() if name in named)
