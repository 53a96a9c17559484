"""Decides which destinations HAProxy and the UDP relay may connect to, of those that tenants name. Pure.

Tenants name addresses in EndpointSlices and DNS names in ExternalName Services. vipwire checks both before a
connection, and again when DNS answers differently, this node gets another address, or the API server moves.

An address of this node, of the API server, or of a range that only some clusters' Pods use, is refused unless a Pod
of the same namespace has it: the endpoints controller writes such addresses for Pods with `hostNetwork`. Labels,
owner references and `targetRef` prove nothing, since any writer of the slice sets them. Only the kubelet writes
`status.podIPs`, so vipwire reads the Pod from the API server.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.model.net import (
    SPECIAL_FIRST_BYTES,
    Address,
    Prefix,
    describe_special_use,
    format_address,
    is_loopback,
    parse_address,
)
from vipwire_l7.plan.sites import Pool, Server
from vipwire_l7.watch.objects import BackendEndpoint, BackendService, BackendSlice, Usability
from vipwire_l7.watch.snapshot import Refusal, Snapshot

REASON: Final = "TargetNotPermitted"
_NO_PODS: Final = frozenset[ObjectName]()
"""The reason of an Event, and of a Route's condition ResolvedRefs."""
API_SERVER: Final = ObjectName("default", "kubernetes")
MOST_PODS: Final = 64
"""The maximum of Pods of one namespace that vipwire reads: a tenant may write any number of names into slices."""
_ONLY_HERE: Final = (parse_address("127.0.0.1"), parse_address("::1"))
_NO_HOST: Final = tuple(
    (Prefix.parse(text), name)
    for text, name in (
        ("0.0.0.0/8", "an address that no host can have"),
        ("100::/64", "a discard-only address"),
        ("100:0:0:1::/64", "a dummy address"),
        ("2001::/23", "an address of an IETF protocol"),
        ("5f00::/16", "a segment identifier of a network"),
        ("fec0::/10", "a site-local address"),
    )
)
"""Ranges without hosts or Pods: IANA's special-purpose registries (RFC 6890) and RFC 3879.

Left out are private addresses, carrier-grade NAT (100.64.0.0/10) and unique local addresses, which Pods have, and the
ranges for benchmarks and documentation, which Pods have in laboratories. Teredo (2001::/32) is in the IETF's range.
"""
_OF_PODS_ALONE: Final = tuple(
    (Prefix.parse(text), name)
    for text, name in (
        ("192.0.0.0/24", "an address of an IETF protocol"),
        ("240.0.0.0/4", "a reserved address"),
    )
)
"""No host has these addresses, but some clusters give them to Pods: a Pod of the namespace must have the address."""
_METADATA: Final = frozenset(
    parse_address(text)
    for text in ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254")
)
"""Metadata services of clouds other than 169.254.169.254: Azure, Alibaba, Oracle, AWS, Google."""
_CARRIERS: Final[tuple[tuple[Prefix, Callable[[Address], bytes]], ...]] = (
    (Prefix.parse("::/96"), lambda address: address[12:]),
    (Prefix(Address(bytes(10) + b"\xff\xff" + bytes(4)), 96), lambda address: address[12:]),
    (Prefix.parse("::ffff:0:0:0/96"), lambda address: address[12:]),
    (Prefix.parse("64:ff9b::/96"), lambda address: address[12:]),
    (Prefix.parse("64:ff9b:1::/48"), lambda address: address[12:]),
    (Prefix.parse("2002::/16"), lambda address: address[2:6]),
    (Prefix.parse("2001::/32"), lambda address: bytes(octet ^ 0xFF for octet in address[12:])),
)
"""IPv6 networks whose addresses contain an IPv4 address: mapped, translated, NAT64, 6to4, Teredo."""
_FIRST_BYTES: Final = frozenset((*SPECIAL_FIRST_BYTES, 0x00, 0x01, 0x20, 0x5F, *range(240, 256)))
"""The first bytes of all these networks but one."""
_FIRST_OF_IETF: Final = bytes((192, 0, 0))
_ISATAP: Final = (b"\0\0\x5e\xfe", b"\2\0\x5e\xfe")
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*")


@dataclass(frozen=True, slots=True)
class DestinationSetting:
    """The operator's choices: whether to follow ExternalName, and ranges that tenants may name although refused.

    `domains` are the cluster's. Objects from files are the operator's own trial (`from_files`): there, loopback
    addresses other than 127.0.0.1 and ::1 may stand for Pods.
    """

    external_names: bool = False
    ranges: tuple[Prefix, ...] = ()
    domains: tuple[str, ...] = ("cluster.local",)
    from_files: bool = False


@dataclass(frozen=True, slots=True)
class DnsAnswer:
    """A DNS answer: sorted addresses, and the names of CNAMEs."""

    addresses: tuple[Address, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServiceReview:
    """The result for one Service. `pods` are those whose addresses it depends on."""

    slices: tuple[BackendSlice, ...] = ()
    refusal: Refusal | None = None
    external: Address | None = None
    name: str = ""
    pods: frozenset[ObjectName] = _NO_PODS


@dataclass(slots=True)
class Surroundings:
    """Facts about this node, the API server, DNS and Pods."""

    own: frozenset[Address] = frozenset()
    networks: frozenset[Prefix] = frozenset()
    """Ranges that belong to the node."""
    servers: frozenset[Address] = frozenset()
    answers: dict[str, DnsAnswer] = field(default_factory=dict)
    pods: dict[ObjectName, frozenset[Address]] = field(default_factory=dict)
    asks_pods: bool = False
    """Whether vipwire can read Pods from an API server."""


class Destinations:
    """Checks destinations, and keeps the results of all Services."""

    def __init__(self, setting: DestinationSetting | None = None) -> None:
        self.setting, self.known = setting or DestinationSetting(), Surroundings()
        self._reviewed: dict[ObjectName, ServiceReview] = {}
        self._listed = frozenset[Address]()
        """The API server's addresses, from its Service."""
        self._cluster_ips: Mapping[Address, ObjectName] = {}
        self._taken, self._first_bytes = frozenset[Address](), frozenset(range(256))
        """Addresses and prefixes that are refused. An address without any of these is allowed."""

    @property
    def refusals(self) -> dict[ObjectName, Refusal]:
        return {name: each.refusal for name, each in self._reviewed.items() if each.refusal is not None}

    @property
    def reviewed_services(self) -> AbstractSet[ObjectName]:
        return self._reviewed.keys()

    def list_dns_names(self) -> frozenset[str]:
        return frozenset(each.name for each in self._reviewed.values() if each.name)

    def list_pods(self) -> frozenset[ObjectName]:
        """Return the Pods to read."""
        found: dict[str, list[ObjectName]] = {}
        for pod in sorted(pod for each in self._reviewed.values() for pod in each.pods):
            found.setdefault(pod.namespace, []).append(pod)
        return frozenset(pod for pods in found.values() for pod in dict.fromkeys(pods[:MOST_PODS]))

    def find_dependent_services(self, *, name: str = "", pod: ObjectName | None = None) -> frozenset[ObjectName]:
        return frozenset(
            service
            for service, each in self._reviewed.items()
            if (name and each.name == name) or (pod is not None and pod in each.pods)
        )

    def review_services(self, snapshot: Snapshot, services: Collection[ObjectName]) -> bool:
        """Check Services again; report whether a refusal has changed."""
        self._cluster_ips, known = snapshot.cluster_ips, self.known
        self._taken = known.own | known.servers | self._listed | _METADATA
        first = (byte for each in known.networks for byte in range(each.network[0], each.last[0] + 1))
        self._first_bytes = frozenset((*_FIRST_BYTES, *first))
        before = {name: each.refusal for name in services if (each := self._reviewed.get(name))}
        for name in services:
            self._reviewed[name] = self._review_service(name, snapshot)
        return any(before.get(name) != self._reviewed[name].refusal for name in services)

    def forget_others(self, services: Collection[ObjectName]) -> bool:
        """Forget all other Services; report whether one of them had a refusal."""
        gone = self._reviewed.keys() - services
        return any(each.refusal is not None for each in [self._reviewed.pop(name) for name in gone])

    def follow_api_server(self, snapshot: Snapshot) -> bool:
        """Read the API server's addresses from its Service; report whether they have changed."""
        slices = snapshot.list_slices(API_SERVER)
        found = frozenset(endpoint.address for each in slices for endpoint in each.endpoints)
        before, self._listed = self._listed, found
        return before != found

    def get_allowed_slices(self, service: ObjectName, snapshot: Snapshot) -> tuple[BackendSlice, ...]:
        return self._get_review(service, snapshot).slices

    def find_external_server(self, pool: Pool, snapshot: Snapshot) -> tuple[Server, ...]:
        address = self._get_review(pool.service, snapshot).external
        if address is None:
            return ()
        return (Server(BackendEndpoint(address, Usability.READY), pool.port.target or pool.port.number),)

    def find_objection(self, address: Address, namespace: str, pods: Collection[Address] = ()) -> str:
        """Return why a namespace may not use an address, "" if it may.

        `pods` are addresses of Pods of the namespace.
        """
        is_plain = address[0] not in self._first_bytes and address[:3] != _FIRST_OF_IETF
        is_plain = is_plain and address[8:12] not in _ISATAP
        if is_plain and address not in self._taken and address not in self._cluster_ips:
            return ""  # the common case, kept cheap
        for each in _list_forms(address):
            if not any(each in prefix for prefix in self.setting.ranges) and (
                text := self._find_objection(each, namespace, pods if each == address else ())
            ):
                return text
        return ""

    def find_name_objection(self, name: str, namespace: str) -> str:
        """Return why a namespace may not use a DNS name, "" if it may."""
        labels = name.lower().rstrip(".").split(".")
        if _NUMBER.fullmatch(labels[-1]):
            return "is an address, not a DNS name"
        if len(labels) < 2 or labels[-1] in ("localhost", "localdomain"):
            return "is a name of this machine or of a search path"
        for domain in ("svc", *self.setting.domains):
            inner = [*([] if domain == "svc" else ["svc"]), *domain.split(".")]
            if labels[-len(domain.split(".")) :] != domain.split("."):
                continue
            if labels[-len(inner) :] != inner or labels[-len(inner) - 1 : -len(inner)] != [namespace]:
                return "is a name of the cluster outside of this namespace"
        return ""

    def _get_review(self, service: ObjectName, snapshot: Snapshot) -> ServiceReview:
        if service not in self._reviewed:
            self.review_services(snapshot, (service,))
        return self._reviewed[service]

    def _review_service(self, name: ObjectName, snapshot: Snapshot) -> ServiceReview:
        service = snapshot.services.get(name)
        if service is not None and service.external:
            return self._review_name(service)
        return self._review_slices(name, snapshot.list_slices(name))

    def _review_name(self, service: BackendService) -> ServiceReview:
        external, namespace = service.external, service.name.namespace
        about = f"the Service {service.name} leads to {external[:80]}"
        if not self.setting.external_names:
            return ServiceReview(refusal=Refusal(f"{about}; ExternalName needs --allow-external-name", whole=True))
        if text := self.find_name_objection(external, namespace):
            return ServiceReview(refusal=Refusal(f"{about}, which {text}", whole=True))
        answered = self.known.answers.get(external, DnsAnswer())
        for each in answered.names:
            if text := self.find_name_objection(each, namespace):
                refusal = Refusal(f"{about}, an alias of {each[:80]}, which {text}", whole=True)
                return ServiceReview(refusal=refusal, name=external)
        judged = [(each, self.find_objection(each, namespace)) for each in answered.addresses]
        good = [each for each, text in judged if not text]
        refused = next((f"{format_address(each)}, {text}" for each, text in judged if text), "")
        before = self._reviewed.get(service.name)
        chosen = before.external if before is not None and before.external in good else next(iter(good), None)
        told = Refusal(f"{about}, which is {refused}; {_WAY_OUT}", whole=not good) if refused else None
        return ServiceReview(refusal=told, external=chosen, name=external)

    def _review_slices(self, name: ObjectName, slices: Iterable[BackendSlice]) -> ServiceReview:
        kept, first, some, pods = list[BackendSlice](), "", False, set[ObjectName]()
        for each in slices:
            good = list[BackendEndpoint]()
            for endpoint in each.endpoints:
                is_other_loopback = is_loopback(endpoint.address) and endpoint.address not in _ONLY_HERE
                is_trial = self.setting.from_files and is_other_loopback
                text: str | None = "" if is_trial else self.find_objection(endpoint.address, name.namespace)
                if text and endpoint.pod:
                    text = self._check_pod_address(
                        ObjectName(name.namespace, endpoint.pod), endpoint.address, text, pods
                    )
                if text is None:
                    continue
                if text:
                    first = first or f"EndpointSlice {each.name} names {format_address(endpoint.address)}, {text}"
                else:
                    good.append(endpoint)
            some = some or bool(good)
            kept.append(each if len(good) == len(each.endpoints) else replace(each, endpoints=tuple(good)))
        refusal = Refusal(f"{first}; {_WAY_OUT}", whole=not some) if first else None
        return ServiceReview(tuple(kept), refusal, pods=frozenset(pods) if pods else _NO_PODS)

    def _check_pod_address(self, pod: ObjectName, address: Address, text: str, pods: set[ObjectName]) -> str | None:
        """Return the objection unless the Pod has the address; None until vipwire has read the Pod."""
        if not self.known.asks_pods or self.find_objection(address, pod.namespace, (address,)):
            return text
        pods.add(pod)
        found = self.known.pods.get(pod)
        if found is None:
            return None
        return "" if address in found else f"{text}, and no Pod {pod.name} has it"

    def _find_objection(self, address: Address, namespace: str, pods: Collection[Address]) -> str:
        if text := self._find_reservation(address):
            return text
        service = self._cluster_ips.get(address)
        if service == API_SERVER:
            return "an address of the API server"
        if service is not None and service.namespace != namespace:
            return f"the ClusterIP of the Service {service}"
        # In IPVS mode a ClusterIP of the namespace is an address of this node. Only a Service from a file may claim
        # any address.
        if address in pods or (service is not None and not self.setting.from_files):
            return ""
        if address in self.known.servers or address in self._listed:
            return "an address of the API server"
        is_own = address in self.known.own or any(address in each for each in self.known.networks)
        return "an address of this node" if is_own else _find_range_name(address, _OF_PODS_ALONE)

    def _find_reservation(self, address: Address) -> str:
        if text := describe_special_use(address) or _find_range_name(address, _NO_HOST):
            return text
        return "a cloud's metadata service" if address in _METADATA else ""


_WAY_OUT: Final = "--allow-target-range allows a range"


def _find_range_name(address: Address, ranges: Iterable[tuple[Prefix, str]]) -> str:
    return next((name for prefix, name in ranges if address in prefix), "")


def _list_forms(address: Address) -> Iterator[Address]:
    """Yield an address, and the IPv4 address that it contains."""
    yield address
    if len(address) != 16 or describe_special_use(address):
        return
    for prefix, carried in _CARRIERS:
        if address in prefix:
            yield Address(carried(address))
    if address[8:12] in _ISATAP:
        yield Address(address[12:])
