"""Finds the consequences of draining an endpoint here: its Services, their other endpoints, connections left.

The connections that are left are read from connection tracking. It forgets a TCP connection two minutes after its
end: those are told apart by the little time that they have left, for an open one has hours or days.
"""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from vipwire.errors import ConfigError
from vipwire.inspect.explain.suggestions import find_services, meant
from vipwire.inspect.live.flows import Frontends, tracked
from vipwire.inspect.node.situation import Situation
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Protocol, format_address, format_endpoint, parse_address
from vipwire.model.node import Drain
from vipwire.model.text import port_number
from vipwire.modes.registry import selected
from vipwire.plan.plan import Forward, Frontend

_CLOSING_SECONDS: Final = 120
"""The longest that the kernel keeps a TCP connection that begins or has ended (nf_conntrack_proto_tcp.c)."""

Place = tuple[Address, int]
"""An endpoint: address and port."""


def read_drain(situation: Situation, endpoint: str, service: str) -> Drain:
    """Read `IP`, `IP:port` or `[IPv6]:port`, and a Service's name or nothing. Raise ConfigError."""
    address, port = _read_place(endpoint)
    if not service:
        return Drain(address, port)
    found = find_services(situation.store.services, service)
    if len(found) > 1:
        raise ConfigError(f"{service} means {len(found)} Services: {', '.join(str(each.name) for each in found)}")
    return Drain(address, port, found[0].name)


def _read_place(text: str) -> tuple[Address, int | None]:
    try:
        return parse_address(text.strip("[]")), None
    except ValueError:
        host, _, port = text.rpartition(":")
    with contextlib.suppress(ValueError):
        if (number := port_number(port)) is not None:
            return parse_address(host.strip("[]")), number
    raise ConfigError(f"{text!r} is no endpoint: give IP, IP:port or [IPv6]:port")


def endpoints(situation: Situation) -> Iterator[tuple[ServicePortName, Place]]:
    """Yield every endpoint of every Service that is served here, with the Service's port."""
    for name, service in situation.store.services.items():
        for piece in situation.store.view(name)[1]:
            for port in service.ports:
                for theirs in piece.ports:
                    if (theirs.name, theirs.protocol) == (port.name, port.protocol):
                        for each in piece.endpoints:
                            yield service.port_name(port), (each.address, theirs.port)


def concerned(situation: Situation, drain: Drain) -> tuple[ServicePortName, ...]:
    """Name the Service ports that have the endpoint, in order."""
    found = {name for name, place in endpoints(situation) if drain.covers(name.service, *place)}
    return tuple(sorted(found, key=str))


def require_concerned(situation: Situation, drain: Drain) -> tuple[ServicePortName, ...]:
    """Name the Service ports that have the endpoint; raise ConfigError, with what is near, if there is none."""
    found = concerned(situation, drain)
    if found:
        return found
    there = {place for name, place in endpoints(situation) if drain.service in (None, name.service)}
    of = f" of {drain.service}" if drain.service else ""
    raise ConfigError(f"there is no endpoint {drain._replace(service=None)}{of}{_similar(drain, there)}")


def _similar(drain: Drain, there: Iterable[Place]) -> str:
    texts = sorted(format_address(a) if drain.port is None else format_endpoint(a, port) for a, port in there)
    wanted = str(drain._replace(service=None))
    nearest = sorted(set(texts), key=lambda text: -difflib.SequenceMatcher(None, wanted, text).ratio())
    return meant(wanted, nearest) if len(nearest) <= 6 else f"; near it: {', '.join(nearest[:3])}"


def newly_unserved(before: Situation, after: Situation) -> tuple[str, ...]:
    """List the frontends that a change of what is drained leaves without an endpoint."""
    found: dict[str, None] = {}
    for old, new in zip(before.sides, after.sides, strict=True):
        for key, frontend in old.plan.frontends.items():
            then = new.plan.frontends[key]
            if isinstance(frontend.action, Forward) and not isinstance(then.action, Forward):
                found[_lost(then, str(key))] = None
    return tuple(found)


def _lost(frontend: Frontend, key: str) -> str:
    reason = "" if isinstance(frontend.action, Forward) else frontend.action.reason.value
    return f"{frontend.port_name} {reason.replace('has no', 'would have no')} left for {key}"


class DrainedConnections(NamedTuple):
    """The connections of an endpoint: those that may go on for long, and those that are opening or have ended."""

    open: int = 0
    closing: int = 0


def connections(situation: Situation, drain: Drain) -> DrainedConnections:
    """Count the connections through this node to a drained endpoint. Raise UnsupportedError without the right to."""
    frontends = Frontends.of(situation)
    flows = [flow for flow in tracked() if _goes_there(situation, frontends, flow, drain)]
    closing = sum(flow.protocol == Protocol.TCP.value and flow.timeout <= _CLOSING_SECONDS for flow in flows)
    return DrainedConnections(len(flows) - closing, closing)


def _goes_there(situation: Situation, frontends: Frontends, flow: Flow, drain: Drain) -> bool:
    if selected(situation.config).direct and flow.destination == flow.reply_source == drain.address:
        return drain.port in (None, flow.destination_port)  # of which Service it was, nobody knows
    if selected(situation.config).relays:  # the proxy itself is the endpoint's client there
        there, ours = (flow.destination, flow.destination_port), flow.source in situation.own_addresses
    else:
        there, ours = (flow.reply_source, flow.reply_source_port), flow.destination != flow.reply_source
    if not ours or there[0] != drain.address or drain.port not in (None, there[1]):
        return False
    if drain.service is None or selected(situation.config).relays:
        return True
    name = frontends.name(flow)
    return name is not None and name.service == drain.service


def in_kernel(situation: Situation, names: Iterable[ObjectName]) -> bool | None:
    """Report whether the kernel holds what is planned for these Services; None if it cannot be read."""
    wanted = list(names)
    drifts = [side.drift(name) for side in situation.sides for name in wanted]
    if any(drift is None for drift in drifts):
        return None
    return not any(drifts)
