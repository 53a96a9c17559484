"""Derives a Service's records: Kubernetes' DNS specification 1.1.0, section 2.

The specification leaves three things open, where vipwire follows CoreDNS: the label of an endpoint without a hostname
is its address with dashes; SRV records have priority 0 and share a weight of 100; two endpoints with the same
hostname share that name.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from vipwire_up.dns.messages.names import LONGEST, encode_name, encode_reverse_name, format_dashed_address
from vipwire_up.dns.objects import DnsEndpoint, DnsPort, DnsService, DnsSlice, Form

A, NS, CNAME, SOA, PTR, TXT, AAAA, SRV = 1, 2, 5, 6, 12, 16, 28, 33
WEIGHT = 100
"""The weight that the SRV records of one name share."""

RRsets: TypeAlias = Mapping[int, tuple[bytes, ...]]
"""The data of a name's records by type, with names in them not compressed."""
Records: TypeAlias = dict[bytes, dict[int, tuple[bytes, ...]]]
"""Records by encoded name."""


def service_name(service: DnsService, zone: bytes) -> bytes:
    """Return the name of a Service: `<service>.<namespace>.svc.<zone>`."""
    return encode_name((service.name.name, service.name.namespace, "svc"), zone)


def build_records(service: DnsService, slices: Iterable[DnsSlice], zone: bytes) -> Records:
    """Return all records of a Service, including those in in-addr.arpa and ip6.arpa; a headless one may have none."""
    name = service_name(service, zone)
    match service.form:
        case Form.EXTERNAL:
            return {name: {CNAME: (service.target,)}}
        case Form.CLUSTER_IP:
            return _build_cluster_ip_records(service, name)
        case Form.HEADLESS:
            return _build_headless_records(service, slices, name)


def _build_cluster_ip_records(service: DnsService, name: bytes) -> Records:
    records = _Collected()
    for address in service.addresses:
        records.add(name, *_encode_address(address))
        records.add(encode_reverse_name(address), PTR, name)
    for port in service.ports:
        records.add(_encode_port_name(port, name), SRV, _encode_srv(WEIGHT, port, name))
    return records.all()


def _build_headless_records(service: DnsService, slices: Iterable[DnsSlice], name: bytes) -> Records:
    records = _Collected()
    answers: dict[bytes, dict[tuple[DnsPort, bytes], None]] = {}
    for piece in slices:
        for endpoint in piece.endpoints:
            if not (endpoint.ready or service.publish_not_ready):
                continue
            host = encode_name((_host_label(endpoint),), name)
            if len(host) > LONGEST:
                continue
            for of in (name, host):
                records.add(of, *_encode_address(endpoint.address))
            records.add(encode_reverse_name(endpoint.address), PTR, host)
            for port in piece.ports:
                answers.setdefault(_encode_port_name(port, name), {})[port, host] = None
    for of, pairs in answers.items():
        for port, host in pairs:
            records.add(of, SRV, _encode_srv(max(1, WEIGHT // len(pairs)), port, host))
    return records.all()


class _Collected:
    """Collects records without duplicates (RFC 2181 5)."""

    def __init__(self) -> None:
        self._found: dict[bytes, dict[int, dict[bytes, None]]] = {}

    def add(self, name: bytes, kind: int, data: bytes) -> None:
        self._found.setdefault(name, {}).setdefault(kind, {})[data] = None

    def all(self) -> Records:
        return {
            name: {kind: tuple(data) for kind, data in sets.items()}
            for name, sets in self._found.items()
            if len(name) <= LONGEST
        }


def _host_label(endpoint: DnsEndpoint) -> str:
    return endpoint.hostname or format_dashed_address(endpoint.address)


def _encode_address(address: bytes) -> tuple[int, bytes]:
    return A if len(address) == 4 else AAAA, address


def _encode_port_name(port: DnsPort, name: bytes) -> bytes:
    return encode_name((f"_{port.name}", f"_{port.protocol.label}"), name)


def _encode_srv(weight: int, port: DnsPort, target: bytes) -> bytes:
    return struct.pack("!HHH", 0, weight, port.number) + target
