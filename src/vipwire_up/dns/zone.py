"""The cluster's zone, and answers from it.

An event costs time in proportion to its own Service: the new names replace the old ones. An answer is built at the
first question and kept with the name until the Service changes, so later ones cost one look-up. A name with only
names below it exists without records (RFC 8020: NOERROR, not NXDOMAIN), so those are counted.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.model.problem import Problem
from vipwire.watched_objects.event import Deleted, Listed, Upserted
from vipwire_up.dns.messages import names
from vipwire_up.dns.messages.message import NOERROR, NXDOMAIN, OWNER, Reply, encode_record
from vipwire_up.dns.objects import DnsEvent, DnsKind, DnsService, DnsSlice
from vipwire_up.dns.records import AAAA, CNAME, NS, SOA, SRV, TXT, A, Records, RRsets, build_records

VERSION: Final = b"\x051.1.0"
"""The TXT record of `dns-version`: the version of the DNS specification."""
REFRESH, RETRY, EXPIRE = 7200, 1800, 86400
_ADDITIONAL: Final = 30
"""SRV targets whose addresses are added to an answer; more would not fit into a packet."""
ANY: Final = 255


class _Name:
    """A name's records, and the answers built so far, by type."""

    __slots__ = ("answers", "sets")

    def __init__(self, sets: RRsets) -> None:
        self.sets = sets
        self.answers: dict[int, Reply] = {}


class Zone:
    """The names of one cluster. `ttl` in seconds; `addresses` are those of this server, for its NS record.

    `serial` is the SOA's first serial number, which grows with every change.
    """

    def __init__(self, zone: str, *, ttl: int = 5, addresses: tuple[Address, ...] = (), serial: int = 1) -> None:
        self.name = names.parse_name(zone)
        self.ttl, self.serial = ttl, serial
        self._names: dict[bytes, _Name] = {}
        self._reverse: dict[bytes, dict[ObjectName, tuple[bytes, ...]]] = {}
        self._below: dict[bytes, int] = {}
        self._services: dict[ObjectName, DnsService] = {}
        self._slices: dict[ObjectName, dict[ObjectName, DnsSlice]] = {}
        self._owners: dict[ObjectName, ObjectName] = {}
        self._held: dict[ObjectName, tuple[bytes, ...]] = {}
        self._problems: dict[tuple[str, ObjectName], tuple[Problem, ...]] = {}
        self._failed: list[Problem] = []
        self._waiting = set(DnsKind)
        self._put_records(ObjectName("", ""), self._build_own_records(addresses))
        self._advance_serial()

    @property
    def synced(self) -> bool:
        """Whether all kinds have been listed: before that, an unknown name may still exist."""
        return not self._waiting

    @property
    def sizes(self) -> Mapping[str, int]:
        return {"services": len(self._services), "names": len(self._names) + len(self._reverse)}

    def _build_own_records(self, addresses: tuple[Address, ...]) -> Records:
        server = names.encode_name(("ns", "dns"), self.name)
        mailbox = names.encode_name(("hostmaster",), self.name)
        timers = struct.pack("!IIIII", self.serial, REFRESH, RETRY, EXPIRE, self.ttl)
        own: Records = {
            self.name: {SOA: (server + mailbox + timers,), NS: (server,)},
            names.encode_name(("dns-version",), self.name): {TXT: (VERSION,)},
            server: {},
        }
        for kind, size in ((A, 4), (AAAA, 16)):
            if data := tuple(address for address in addresses if len(address) == size):
                own[server][kind] = data
        return own

    def _advance_serial(self) -> None:
        """Rebuild the SOA with a new serial number, and the two negative answers."""
        self.serial = (self.serial + 1) & 0xFFFFFFFF
        apex = self._names[self.name]
        old = apex.sets[SOA][0]
        soa = old[:-20] + struct.pack("!I", self.serial) + old[-16:]
        self._names[self.name] = _Name({**apex.sets, SOA: (soa,)})
        authority = (encode_record(self.name, SOA, self.ttl, soa),)
        self.nothing, self.unknown = Reply.build(NOERROR, (), authority), Reply.build(NXDOMAIN, (), authority)

    def apply(self, event: DnsEvent) -> tuple[Problem, ...]:
        match event:
            case Listed(kind, objects, problems):
                fresh = self._apply_list(kind.value, problems)
                self._replace_all(kind, objects)
            case Upserted(item, problems):
                kind = DnsKind.SERVICE if isinstance(item, DnsService) else DnsKind.SLICE
                fresh = self._keep_problems(kind.value, item.name, problems)
                self._put_object(item)
            case Deleted(kind, name, problems):
                fresh = self._keep_problems(kind.value, name, problems)
                self._drop_object(kind, name)
        failed, self._failed = tuple(self._failed), []
        return (*fresh, *failed)

    def _apply_list(self, kind: str, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        known = {problem for (of, _), some in self._problems.items() if of == kind for problem in some}
        self._problems = {key: some for key, some in self._problems.items() if key[0] != kind}
        for problem in problems:
            key = kind, problem.object
            self._problems[key] = (*self._problems.get(key, ()), problem)
        return tuple(problem for problem in dict.fromkeys(problems) if problem not in known)

    def _keep_problems(self, kind: str, name: ObjectName, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        known = self._problems.pop((kind, name), ())
        if problems:
            self._problems[kind, name] = problems
        return tuple(problem for problem in problems if problem not in known)

    def _replace_all(self, kind: DnsKind, objects: tuple[DnsService | DnsSlice, ...]) -> None:
        present = {item.name for item in objects}
        held = self._services if kind is DnsKind.SERVICE else self._owners
        for gone in [name for name in held if name not in present]:
            self._drop_object(kind, gone)
        for item in objects:
            self._put_object(item)
        self._waiting.discard(kind)

    def _put_object(self, item: DnsService | DnsSlice) -> None:
        if isinstance(item, DnsService):
            if self._services.get(item.name) != item:
                self._services[item.name] = item
                self._update_records(item.name)
            return
        owner = self._owners.get(item.name)
        if owner is not None and owner != item.service:
            self._drop_object(DnsKind.SLICE, item.name)
        slices = self._slices.setdefault(item.service, {})
        if slices.get(item.name) != item:
            slices[item.name] = item
            self._owners[item.name] = item.service
            self._update_records(item.service)

    def _drop_object(self, kind: DnsKind, name: ObjectName) -> None:
        if kind is DnsKind.SERVICE:
            if self._services.pop(name, None) is not None:
                self._update_records(name)
            return
        owner = self._owners.pop(name, None)
        if owner is not None:
            slices = self._slices[owner]
            del slices[name]
            if not slices:
                del self._slices[owner]
            self._update_records(owner)

    def _update_records(self, name: ObjectName) -> None:
        service, slices = self._services.get(name), self._slices.get(name, {})
        records = {} if service is None else self._build_records(service, slices)
        if self._put_records(name, records):
            self._advance_serial()

    def _build_records(self, service: DnsService, slices: Mapping[ObjectName, DnsSlice]) -> Records:
        """Build a Service's records; after an unexpected exception it has none, and other Services are unaffected."""
        try:
            return build_records(service, [slices[key] for key in sorted(slices)], self.name)
        except Exception as error:  # noqa: BLE001  # an error in one object must not stop the others
            message = f"DNS cannot serve its names, which is a defect of vipwire: {type(error).__name__}: {error}"
            self._failed.append(Problem("Service", service.name, "", message[:300]))
            return {}

    def _put_records(self, owner: ObjectName, records: Records) -> bool:
        before = self._held.get(owner, ())
        if records.keys() == set(before) and all(self._sets_of(name, owner) == records[name] for name in before):
            return False
        for name in before:
            if name not in records:
                self._remove_sets(name, owner)
        for name, sets in records.items():
            self._add_sets(name, owner, sets)
        if records:
            self._held[owner] = tuple(records)
        else:
            self._held.pop(owner, None)
        return True

    def _sets_of(self, name: bytes, owner: ObjectName) -> RRsets:
        if name.endswith(self.name):
            return self._names[name].sets
        return {12: self._reverse[name][owner]}

    def _add_sets(self, name: bytes, owner: ObjectName, sets: RRsets) -> None:
        if not name.endswith(self.name):
            self._reverse.setdefault(name, {})[owner] = sets[12]
            return
        if name not in self._names:
            for above in self._names_above(name):
                self._below[above] = self._below.get(above, 0) + 1
        self._names[name] = _Name(sets)

    def _remove_sets(self, name: bytes, owner: ObjectName) -> None:
        if not name.endswith(self.name):
            owners = self._reverse[name]
            del owners[owner]
            if not owners:
                del self._reverse[name]
            return
        del self._names[name]
        for above in self._names_above(name):
            self._below[above] -= 1
            if not self._below[above]:
                del self._below[above]

    def _names_above(self, name: bytes) -> Iterator[bytes]:
        for above in names.parent_names(name):
            if len(above) < len(self.name):
                return
            yield above

    def contains(self, name: bytes) -> bool:
        return names.is_below(name, self.name)

    def exists(self, name: bytes) -> bool:
        return name in self._names or name in self._below

    def existing_names(self) -> frozenset[bytes]:
        """Return the existing names, in the zone and, for addresses, outside of it."""
        return frozenset((*self._names, *self._below, *self._reverse))

    def answer_name(self, name: bytes, kind: int) -> Reply | None:
        """Answer from the records of a name in the zone; None if it has none. Does not follow a CNAME."""
        held = self._names.get(name)
        if held is None:
            return None
        found = held.answers.get(kind)
        if found is None:
            found = self._build_reply(held.sets, kind)
            if found is not self.nothing:
                held.answers[kind] = found
        return found

    def answer_reverse(self, name: bytes) -> Reply | None:
        """Answer a PTR question for an address of a Service or endpoint; None for other addresses."""
        owners = self._reverse.get(name)
        if owners is None:
            return None
        data = dict.fromkeys(target for targets in owners.values() for target in targets)
        return Reply.build(NOERROR, tuple(encode_record(OWNER, 12, self.ttl, target) for target in data))

    def cname_target(self, name: bytes) -> bytes | None:
        held = self._names.get(name)
        return held.sets[CNAME][0] if held is not None and CNAME in held.sets else None

    def _build_reply(self, sets: RRsets, kind: int) -> Reply:
        if kind == ANY and sets:  # one of the sets is enough (RFC 8482 4.1)
            kind = min(sets)
        if kind not in sets and CNAME in sets:
            kind = CNAME
        data = sets.get(kind)
        if data is None:
            return self.nothing
        answers = tuple(encode_record(OWNER, kind, self.ttl, each) for each in data)
        return Reply.build(NOERROR, answers, (), self._target_addresses(data) if kind == SRV else ())

    def _target_addresses(self, targets: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the addresses of SRV targets, for the additional section (RFC 2782)."""
        found = []
        for target in dict.fromkeys(data[6:] for data in targets[:_ADDITIONAL]):
            held = self._names.get(target)
            sets = held.sets if held is not None else {}
            found += [
                encode_record(target, kind, self.ttl, data) for kind in (A, AAAA) for data in sets.get(kind, ())
            ]
        return tuple(found)
