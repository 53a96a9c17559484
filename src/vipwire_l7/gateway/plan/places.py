"""Groups the listeners that share an address and port, and builds HAProxy's frontends for them. Pure.

A port has one frontend, unless its listeners treat TLS differently: terminate it with HTTP, terminate it without, or
pass it through. Then each way has a frontend. Clients connect to the frontend that passes TLS through;
by SNI this frontend forwards connections to the others.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.listeners import TLS_MODES, Listener
from vipwire_l7.plan.sites import EVERY_HOST, Frontend, Match, Mode, Route
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import ObjectRef

_WAYS = {Mode.HTTPS: ":https", Mode.TLS_ENDED: ":tls"}
"""The suffixes of the marks of frontends that get connections from another frontend."""


def make_place_ref(place: str) -> ObjectRef:
    """Return a reference that stands for an address and port in dependencies. No Gateway can have this name."""
    return IngressKind.GATEWAY, ObjectName("", place)


@dataclass(slots=True)
class SharedPort:
    """An address and port. `mark` is the suffix of the hosts of its frontend."""

    bind: str
    port: int
    mark: str
    ways: dict[Mode, list[Listener]] = field(default_factory=dict)
    hosts: dict[str, set[Mode]] = field(default_factory=dict)
    """The hostnames of all listeners, with their modes."""

    def add_listener(self, listener: Listener) -> str:
        """Add a listener; return its conflict with listeners of older Gateways, "" for none."""
        if text := self._find_objection(listener):
            return text
        self.ways.setdefault(listener.mode, []).append(listener)
        self.hosts.setdefault(listener.host, set()).add(listener.mode)
        return ""

    def _find_objection(self, listener: Listener) -> str:
        modes = {*self.ways, listener.mode}
        if len(modes) > 1 and not modes <= TLS_MODES:
            return f"an older Gateway uses port {listener.port} of this address with another protocol"
        if self.hosts.get(listener.host, set()) - {listener.mode}:
            return f"an older Gateway uses port {listener.port} and this hostname with another protocol"
        first = next(iter(self.ways.get(listener.mode, ())), None)
        if first is not None and first.clients != listener.clients:
            return f"an older Gateway validates client certificates differently on port {listener.port}"
        return ""

    def get_mark(self, mode: Mode) -> str:
        return self.mark if len(self.ways) == 1 or mode is Mode.TLS else f"{self.mark}{_WAYS[mode]}"

    def build_frontends(self) -> Iterator[tuple[Mode, Frontend]]:
        """Build the frontends without their routes, the one that clients connect to first."""
        modes = sorted(self.ways, key=lambda each: (each is not Mode.TLS, each.value))
        for mode in modes if len(modes) == 1 or Mode.TLS in modes else (Mode.TLS, *modes):
            yield mode, self._build_frontend(mode)

    def list_forwarding_routes(self) -> Iterator[Route]:
        """Yield routes that forward the hosts of terminated TLS, and unknown hosts, to the terminating frontend."""
        hosts = set(self.hosts)
        for mode, listeners in sorted(self.ways.items(), key=lambda each: each[0].value):
            if mode is Mode.TLS or len(self.ways) == 1:
                continue
            own = {each.host: each.owner for each in listeners}
            if EVERY_HOST not in hosts:
                own[EVERY_HOST] = listeners[0].owner
                hosts.add(EVERY_HOST)
            target = self._build_frontend(mode).inner_target
            for host, owner in own.items():
                yield Route(f"{host}{self.mark}", Match.PREFIX, "", target, owner.name, owner.kind.value)

    def _build_frontend(self, mode: Mode) -> Frontend:
        listeners, mark = self.ways.get(mode, []), self.get_mark(mode)
        clients = listeners[0].clients if listeners else None  # all listeners of a frontend have the same validation
        return Frontend(
            f"gateway{mark}",
            f"{self.bind}:{self.port}" if mark == self.mark else "",
            mark,
            mode,
            _list_certificates(listeners),
            any(each.host == EVERY_HOST and each.certificates for each in listeners),
            hosts=frozenset() if mode is Mode.TCP else frozenset(self.hosts),
            clients=clients.file if clients is not None else "",
            lets_strangers_in=clients is not None and clients.optional,
        )


def _list_certificates(listeners: Iterable[Listener]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """List the certificates of a frontend with their hosts, those for all hosts first: the first is the default."""
    found: dict[str, dict[str, None]] = {}
    for listener in sorted(listeners, key=lambda each: each.host != EVERY_HOST):
        for certificate in listener.certificates:
            hosts = certificate.hosts if listener.host == EVERY_HOST else (listener.host,)
            found.setdefault(certificate.name, {}).update(dict.fromkeys(hosts))
    return tuple((name, tuple(hosts)) for name, hosts in found.items())
