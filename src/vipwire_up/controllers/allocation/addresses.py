"""ClusterIPs: allocated from the ServiceCIDRs, recorded in IPAddress objects (KEP-1880).

An address is taken if an IPAddress of its name exists: there is no other state. The object is written together with
the Service, so the store refuses an address that two Services want.
"""

import ipaddress
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.service_cidr import IP_ADDRESSES, SERVICE_CIDRS
from vipwire_up.api.kinds.service_rules import NONE
from vipwire_up.api.objects.errors import internal_error, invalid, not_valid
from vipwire_up.api.objects.object import (
    decode_damaged_record,
    decode_record,
    key_of,
    new_uid,
    value_at,
    value_encoder,
)
from vipwire_up.api.objects.resource import Object
from vipwire_up.controllers.allocation.ranges import Draw, Network, address_range, networks_of
from vipwire_up.store.record import Check, Key, Record, Step, Write
from vipwire_up.store.store import Store

MANAGED_BY: Final = "ipallocator.k8s.io"
_LABEL: Final = "ipaddress.kubernetes.io"


class Addresses:
    """Allocates ClusterIPs. Reads the store's head, so that writes on their way to disk count."""

    def __init__(self, store: Store, draw: Draw) -> None:
        self._store, self._draw = store, draw
        self._seen: tuple[int, ...] = ()
        self._networks: tuple[Network, ...] = ()

    def service_networks(self) -> tuple[Network, ...]:
        records = self._store.scan(SERVICE_CIDRS.id)
        seen = tuple(record.revision for record in records)
        if seen != self._seen:
            self._networks, self._seen = tuple(_list_networks(records)), seen
        return self._networks

    def available_families(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f"IPv{network.version}" for network in self.service_networks()))

    def allocate(self, owner: Object, now: str) -> tuple[Step, ...]:
        """Fill a Service's clusterIPs for its ipFamilies; return the writes of new IPAddresses. Raise ApiError."""
        spec, writes = owner["spec"], list[Step]()
        addresses = list(spec.get("clusterIPs") or ())
        if addresses[:1] == [NONE]:
            return ()
        for index, family in enumerate(spec.get("ipFamilies") or ()):
            if index < len(addresses):
                if self._holder_of(addresses[index]) == _owner_reference(owner):
                    continue
                self._check_address(owner, addresses[index])
            else:
                addresses.append(self._choose_address(family))
            writes += (_write_ip_address(owner, addresses[index], now), *self._require_service_cidr(addresses[index]))
        spec["clusterIPs"], spec["clusterIP"] = addresses, addresses[0] if addresses else ""
        return tuple(writes)

    def _require_service_cidr(self, address: str) -> Iterator[Check]:
        """Require that the ServiceCIDR of an address is unchanged, because another server may be deleting it.

        The deleting server marks the ServiceCIDR first and then looks for its addresses: so it sees those allocated
        before the mark, and none are allocated after.
        """
        if self._store.shared:
            parsed = ipaddress.ip_address(address)
            for record in self._store.scan(SERVICE_CIDRS.id):
                if any(parsed in network for network in _list_networks((record,))):
                    yield Check(record.key, record.revision)
                    return

    def free(self, owner: Object, addresses: Iterable[str]) -> tuple[Write, ...]:
        held = (address for address in addresses if self._holder_of(address) == _owner_reference(owner))
        found = (self._store.head(_address_key(address)) for address in held)
        return tuple(
            Write(record.key, value_encoder(decode_record(record)), record.revision, deletes=True)
            for record in found
            if record
        )

    def _holder_of(self, address: str) -> Object | None:
        record = self._store.head(_address_key(address)) if address != NONE else None
        return value_at(decode_record(record), "spec", "parentRef") if record else None

    def _is_taken(self, network: Network, number: int) -> bool:
        kind = ipaddress.IPv4Address if network.version == 4 else ipaddress.IPv6Address
        return self._store.head(Key(IP_ADDRESSES.id, "", str(kind(number)))) is not None

    def _choose_address(self, family: str) -> str:
        for network in self.service_networks():
            if f"IPv{network.version}" != family:
                continue
            number = address_range(network).choose_free_number(partial(self._is_taken, network), self._draw)
            if number is not None:
                kind = ipaddress.IPv4Address if network.version == 4 else ipaddress.IPv6Address
                return str(kind(number))
        raise internal_error("failed to allocate a serviceIP: range is full")

    def _check_address(self, owner: Object, text: str) -> None:
        address = ipaddress.ip_address(text)
        inside = [
            n for n in self.service_networks() if n.version == address.version and int(address) in address_range(n)
        ]
        if not inside:
            ranges = ", ".join(str(n) for n in self.service_networks() if n.version == address.version)
            raise _refuse_address(owner, text, f"the provided IP ({text}) is not in the valid range. "
                           f"The range of valid IPs is {ranges}")  # fmt: skip
        if self._store.head(_address_key(text)) is not None:
            raise _refuse_address(owner, text, "provided IP is already allocated")


def build_ip_address(owner: Object, address: str, now: str) -> Object:
    family = f"IPv{ipaddress.ip_address(address).version}"
    return {
        "apiVersion": IP_ADDRESSES.api_version,
        "kind": IP_ADDRESSES.kind,
        "metadata": {
            "name": _address_key(address).name,
            "uid": new_uid(),
            "creationTimestamp": now,
            "labels": {f"{_LABEL}/ip-family": family, f"{_LABEL}/managed-by": MANAGED_BY},
        },
        "spec": {"parentRef": _owner_reference(owner)},
    }


def is_created_by_vipwire(note: Object) -> bool:
    """Report whether the allocator made an IPAddress, so that it may also delete it."""
    return (note["metadata"].get("labels") or {}).get(f"{_LABEL}/managed-by") == MANAGED_BY


def _list_networks(records: Iterable[Record]) -> Iterator[Network]:
    values = [(record.key.name, decode_damaged_record(record)) for record in records]
    for _, value in sorted(values, key=lambda each: (str(each[1]["metadata"].get("creationTimestamp")), each[0])):
        if not value["metadata"].get("deletionTimestamp"):
            yield from networks_of(value)


def _address_key(address: str) -> Key:
    return key_of(IP_ADDRESSES, "", str(ipaddress.ip_address(address)))


def _owner_reference(owner: Object) -> Object:
    meta = owner["metadata"]
    return {"group": "", "resource": "services", "namespace": meta["namespace"], "name": meta["name"]}


def _write_ip_address(owner: Object, address: str, now: str) -> Write:
    return Write(_address_key(address), value_encoder(build_ip_address(owner, address, now)), 0)


def _refuse_address(owner: Object, address: str, why: str) -> ApiError:
    cause = invalid("spec.clusterIPs", owner["spec"]["clusterIPs"], f"failed to allocate IP {address}: {why}")
    return not_valid("Service", "", owner["metadata"]["name"], (cause,))
