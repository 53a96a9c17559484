"""Reads a packet or a Service from the command line: `[fd00::10]:53/udp`, `default/web:http`."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from vipwire.errors import ConfigError
from vipwire.inspect.node.situation import Situation
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Protocol, family_of, format_address, is_loopback, parse_address
from vipwire.model.service import Service, ServicePort
from vipwire.model.text import port_number
from vipwire.plan.resolve import Packet

_NEAR: Final = 3


def read_packet(situation: Situation, source: str, destination: str, interface: str = "") -> Packet:
    """Read a packet that arrives at this node; without a source, or from this node's address, it starts here.

    Raise ConfigError with the accepted forms and similar names.
    """
    address, port, protocol = read_destination(situation, destination, _find_family_of_source(source))
    family = family_of(address)
    own = situation.own_addresses
    sender = read_address(source, "--from") if source else _find_node_address(situation, family)
    if family_of(sender) is not family:
        raise ConfigError(
            f"--from {source} is {family_of(sender).value} and {format_address(address)} is {family.value}: "
            "a packet has one family"
        )
    from_node = sender in own or is_loopback(sender)
    if interface and from_node:
        raise ConfigError(f"--interface: {format_address(sender)} is this node's own, so the packet does not arrive")
    return Packet(sender, address, protocol, port, interface, from_node, address in own or is_loopback(address))


def _find_family_of_source(source: str) -> Family | None:
    return None if not source else family_of(read_address(source, "--from"))


def read_address(text: str, what: str) -> Address:
    """Read an address. Raise ConfigError naming the option `what`."""
    try:
        return parse_address(text.strip("[]"))
    except ValueError as error:
        raise ConfigError(f"{what}: {error}") from error


class _Named(NamedTuple):
    """A destination that names a Service, `name` or `name:port`."""

    name: str
    protocol: Protocol | None


def check_destination(text: str) -> None:
    """Raise ConfigError if a destination has no allowed form, before any object is read."""
    _parse_target(text)


def read_destination(situation: Situation, text: str, family: Family | None = None) -> tuple[Address, int, Protocol]:
    """Read ADDRESS:PORT[/PROTOCOL], or SERVICE[:PORT] for a Service's first ClusterIP of a family."""
    found = _parse_target(text)
    return _find_service_address(situation, found, family) if isinstance(found, _Named) else found


def _parse_target(text: str) -> tuple[Address, int, Protocol] | _Named:
    place, slash, word = text.rpartition("/")
    protocol = Protocol.__members__.get(word.upper()) if slash else None
    if protocol is None:
        place = text
    host, colon, port = place.rpartition(":")
    try:
        address = parse_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        if not place or place[0] in ":0123456789" or "[" in place:
            raise ConfigError(
                f"{text!r} is not a destination: write ADDRESS:PORT[/tcp|udp|sctp], or a Service as "
                "NAMESPACE/NAME:PORT"
            ) from None
        return _Named(place, protocol)
    if not colon or (":" in host and not host.startswith("[")):
        raise ConfigError(f"{text!r} is not a destination: an IPv6 address needs brackets, as in [fd00::1]:80")
    if slash and protocol is None:
        raise ConfigError(f"{text!r}: {word!r} must be tcp, udp or sctp")
    number = port_number(port)
    if number is None:
        raise ConfigError(f"{text[:80]!r}: {port[:80]!r} is not a port from 1 to 65535")
    return address, number, protocol or Protocol.TCP


def _find_service_address(
    situation: Situation, named: _Named, family: Family | None
) -> tuple[Address, int, Protocol]:
    name, _, wanted = named.name.partition(":")
    service = _require_one(find_services(situation.store.services, name), name)
    port = _find_port(service, wanted, named.protocol)
    for address in service.cluster_ips:
        if family in (None, family_of(address)):
            return address, port.port, port.protocol
    raise ConfigError(f"{service.name} has no {family.value if family else ''} ClusterIP")


def _require_one(services: list[Service], name: str) -> Service:
    if len(services) > 1:
        raise ConfigError(f"{name!r} could be {', '.join(str(each.name) for each in services)}: write one of these")
    return services[0]


def _find_port(service: Service, wanted: str, protocol: Protocol | None) -> ServicePort:
    ports = [port for port in service.ports if protocol in (None, port.protocol)]
    if not wanted and len(ports) == 1:
        return ports[0]
    for port in ports:
        if wanted and wanted in (port.name, str(port.port)):
            return port
    there = [text for port in service.ports for text in (port.name, str(port.port)) if text]
    if not wanted:
        raise ConfigError(f"{service.name} has several ports: write {service.name}:PORT, one of {', '.join(there)}")
    raise ConfigError(f"{service.name} has no port {wanted!r}{suggest_words(wanted, there)}")


def _find_node_address(situation: Situation, family: Family) -> Address:
    side = situation.find_view(family)
    if side is not None and side.node.address is not None:
        return side.node.address
    raise ConfigError(f"this node has no {family.value} address: give the client's address with --from")


def find_services(services: Mapping[ObjectName, Service], text: str) -> list[Service]:
    """Find the Services of `name`, `namespace/name` or `namespace/name:port`. Raise ConfigError if none."""
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
            f"there is no Service {place!r}{suggest_words(place, map(str, known), (each.name for each in known))}"
        )
    return found


def suggest_words(text: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """Suggest similar words: "; near it: a, b", or all words if they are few.

    `others` are synonyms of the words.
    """
    options = list(dict.fromkeys(known))
    close = difflib.get_close_matches(text, [*options, *dict.fromkeys(others)], _NEAR, 0.6)
    if close:
        return f"; near it: {', '.join(close)}"
    if not options:
        return "; there are no Services"
    return f"; there is {', '.join(options)}" if len(options) <= 2 * _NEAR else f"; there are {len(options)} others"
