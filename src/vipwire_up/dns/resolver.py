"""Decides where an answer comes from: the zone, the cache, or an upstream server.

`quick` answers from memory; `slow` asks upstream for all other questions. A CNAME (ExternalName) is always followed
inside the zone, and out of it if the client wants recursion and an upstream server is configured (RFC 1034 4.3.2). If
a CNAME of an upstream answer leads into the zone, the zone answers from there on.
"""

from dataclasses import replace
from typing import Final, NamedTuple

from vipwire_up.dns.messages import names
from vipwire_up.dns.messages.message import (
    ANY_CLASS,
    IN,
    NOERROR,
    NOTIMP,
    OWNER,
    RD,
    REFUSED,
    SERVFAIL,
    Query,
    Reply,
    record,
)
from vipwire_up.dns.records import AAAA, CNAME, PTR, A
from vipwire_up.dns.upstream.answer import Answer
from vipwire_up.dns.upstream.exchange import Forwarder
from vipwire_up.dns.zone import ANY, Zone

LONGEST_CHAIN: Final = 8
"""CNAMEs that are followed, one after the other."""
_META = range(128, 255)
_TRANSFERS = (251, 252)
_FAILED, _REFUSED, _UNKNOWN_TYPE, _EMPTY = (
    Reply.of(rcode, authoritative=False) for rcode in (SERVFAIL, REFUSED, NOTIMP, NOERROR)
)


class _Chain(NamedTuple):
    """CNAMEs so far; then either the name where they leave the zone, or the answer at their end."""

    records: tuple[bytes, ...]
    outside: bytes = b""
    end: Reply = _FAILED


class Resolver:
    """Answers questions. `pods` enables names of the form 10-0-0-1.namespace.pod."""

    def __init__(
        self,
        zone: Zone,
        forwarder: Forwarder | None,
        *,
        pods: bool = True,
    ) -> None:
        self.zone, self.forwarder = zone, forwarder
        self._pods = names.name_of(("pod",), zone.name) if pods else b""

    def quick(self, query: Query) -> Reply | None:
        zone, kind = self.zone, query.type
        if query.klass not in (IN, ANY_CLASS):
            return _REFUSED
        found = zone.answer(query.name, kind)
        if found is not None:
            if kind in (CNAME, ANY) or zone.target(query.name) is None:
                return found if kind not in _META else _REFUSED
            return self._resolve_alias(query)
        if kind in _META:
            return _REFUSED if kind in _TRANSFERS else _UNKNOWN_TYPE
        if zone.holds(query.name):
            return self._answer_inside(query.name, kind)
        return self._answer_outside(query)

    def _answer_inside(self, name: bytes, kind: int) -> Reply:
        if self._pods and name.endswith(self._pods):
            pod = self._pod(name, kind)
            if pod is not None:
                return pod
        if self.zone.exists(name):
            return self.zone.nothing
        # Before all objects are listed, a missing name may still exist.
        return self.zone.unknown if self.zone.synced else _FAILED

    def _pod(self, name: bytes, kind: int) -> Reply | None:
        """Answer `<address with dashes>.<namespace>.pod` with the address, without a check that such a Pod exists."""
        if next((above for above in list(names.parents(name))[1:2]), b"") != self._pods:
            return None
        address = names.parse_dashed(name[1 : name[0] + 1])
        if address is None:
            return None
        own = A if len(address) == 4 else AAAA
        if kind not in (own, ANY):
            return self.zone.nothing
        return Reply.of(NOERROR, (record(OWNER, own, self.zone.ttl, address),))

    def _answer_outside(self, query: Query) -> Reply | None:
        ours = self.zone.reverse(query.name)
        if ours is not None:
            return ours if query.type in (PTR, ANY) else _EMPTY
        if not self.zone.synced and query.name.endswith((names.REVERSE_4, names.REVERSE_6)):
            return _FAILED  # an address may still be a Service's
        if self.forwarder is None or not self._asks(query):
            return _REFUSED
        known = self.forwarder.known(query)
        return None if known is None else self._enter(known, query.type) or known.reply(self.forwarder.now())

    def _enter(
        self, answer: Answer, kind: int, records: tuple[bytes, ...] = (), owner: bytes = OWNER
    ) -> Reply | None:
        """Let the zone answer from the first CNAME of an upstream answer on that leads into it; None if none does."""
        if kind in (CNAME, ANY):
            return None
        for target in answer.aliases:
            records = (*records, record(owner, CNAME, self.zone.ttl, target))
            if self.zone.holds(target):
                chain = self._chain(target, kind, records)
                if chain.outside:
                    return Reply.of(NOERROR, chain.records, authoritative=False)
                return replace(chain.end, authoritative=False)
            owner = target
        return None

    def _resolve_alias(self, query: Query) -> Reply | None:
        chain = self._chain(query.name, query.type)
        if not chain.outside:
            return chain.end
        return None if self._asks(query) else Reply.of(NOERROR, chain.records)

    def _asks(self, query: Query) -> bool:
        return self.forwarder is not None and bool(self.forwarder.servers) and bool(query.flags & RD)

    def _chain(self, name: bytes, kind: int, before: tuple[bytes, ...] = ()) -> _Chain:
        """Follow CNAMEs inside the zone from a name of the zone on, to which the CNAMEs `before` lead."""
        zone, records, owner = self.zone, list(before), name if before else OWNER
        while True:
            if (target := zone.target(name)) is None:
                end = zone.answer(name, kind) or self._answer_inside(name, kind)
                if end is _FAILED:
                    return _Chain(())
                rest = tuple(name + each[2:] for each in end.answers)
                return _Chain((), end=Reply.of(end.rcode, (*records, *rest), end.authority, end.additional))
            if len(records) >= LONGEST_CHAIN:
                return _Chain(())
            records.append(record(owner, CNAME, zone.ttl, target))
            if not zone.holds(target):
                return _Chain(tuple(records), outside=target)
            name = owner = target

    async def slow(self, query: Query) -> Reply:
        if self.forwarder is None:
            return _REFUSED
        if self.zone.target(query.name) is None:
            answer = await self.forwarder.ask(query)
            return self._enter(answer, query.type) or answer.reply(self.forwarder.now())
        chain = self._chain(query.name, query.type)
        if not chain.outside:
            return chain.end
        further = query._replace(name=chain.outside, question=chain.outside + query.question[-4:])
        answer = await self.forwarder.ask(further)
        if answer.rcode == SERVFAIL:
            return _FAILED
        if (reply := self._enter(answer, query.type, chain.records, chain.outside)) is not None:
            return reply
        records, authority = answer.records(self.forwarder.now())
        reply = Reply.of(answer.rcode, (*chain.records, *records), authority, authoritative=False)
        return replace(reply, is_cut=True) if answer.is_cut else reply
