"""Decides where an answer comes from: the zone, the cache, or an upstream server.

`answer_at_once` answers from memory; `answer_slowly` asks upstream for all other questions. The resolver always
follows a CNAME (ExternalName) inside the zone, and follows a CNAME out of the zone if the client wants recursion and
an upstream server is configured (RFC 1034 4.3.2). If a CNAME of an upstream answer leads into the zone, the zone
answers the rest.
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
    encode_record,
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
    Reply.build(rcode, authoritative=False) for rcode in (SERVFAIL, REFUSED, NOTIMP, NOERROR)
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
        self._pods = names.encode_name(("pod",), zone.name) if pods else b""

    def answer_at_once(self, query: Query) -> Reply | None:
        zone, kind = self.zone, query.type
        if query.klass not in (IN, ANY_CLASS):
            return _REFUSED
        found = zone.answer_name(query.name, kind)
        if found is not None:
            if kind in (CNAME, ANY) or zone.cname_target(query.name) is None:
                return found if kind not in _META else _REFUSED
            return self._resolve_alias(query)
        if kind in _META:
            return _REFUSED if kind in _TRANSFERS else _UNKNOWN_TYPE
        if zone.contains(query.name):
            return self._answer_inside(query.name, kind)
        return self._answer_outside(query)

    def _answer_inside(self, name: bytes, kind: int) -> Reply:
        if self._pods and name.endswith(self._pods):
            pod = self._answer_pod_name(name, kind)
            if pod is not None:
                return pod
        if self.zone.exists(name):
            return self.zone.nothing
        # Before all objects are listed, a missing name may still exist.
        return self.zone.unknown if self.zone.synced else _FAILED

    def _answer_pod_name(self, name: bytes, kind: int) -> Reply | None:
        """Answer `<address with dashes>.<namespace>.pod` with the address, without a check that such a Pod exists."""
        if next((above for above in list(names.parent_names(name))[1:2]), b"") != self._pods:
            return None
        address = names.parse_dashed_address(name[1 : name[0] + 1])
        if address is None:
            return None
        own = A if len(address) == 4 else AAAA
        if kind not in (own, ANY):
            return self.zone.nothing
        return Reply.build(NOERROR, (encode_record(OWNER, own, self.zone.ttl, address),))

    def _answer_outside(self, query: Query) -> Reply | None:
        ours = self.zone.answer_reverse(query.name)
        if ours is not None:
            return ours if query.type in (PTR, ANY) else _EMPTY
        if not self.zone.synced and query.name.endswith((names.REVERSE_4, names.REVERSE_6)):
            return _FAILED  # an address may still be a Service's
        if self.forwarder is None or not self._asks_upstream(query):
            return _REFUSED
        known = self.forwarder.find_cached(query)
        return (
            None if known is None else self._enter_alias(known, query.type) or known.build_reply(self.forwarder.now())
        )

    def _enter_alias(
        self, answer: Answer, kind: int, records: tuple[bytes, ...] = (), owner: bytes = OWNER
    ) -> Reply | None:
        """Let the zone answer from the first CNAME of an upstream answer on that leads into it; None if none does."""
        if kind in (CNAME, ANY):
            return None
        for target in answer.aliases:
            records = (*records, encode_record(owner, CNAME, self.zone.ttl, target))
            if self.zone.contains(target):
                chain = self._follow_aliases(target, kind, records)
                if chain.outside:
                    return Reply.build(NOERROR, chain.records, authoritative=False)
                return replace(chain.end, authoritative=False)
            owner = target
        return None

    def _resolve_alias(self, query: Query) -> Reply | None:
        chain = self._follow_aliases(query.name, query.type)
        if not chain.outside:
            return chain.end
        return None if self._asks_upstream(query) else Reply.build(NOERROR, chain.records)

    def _asks_upstream(self, query: Query) -> bool:
        return self.forwarder is not None and bool(self.forwarder.servers) and bool(query.flags & RD)

    def _follow_aliases(self, name: bytes, kind: int, before: tuple[bytes, ...] = ()) -> _Chain:
        """Follow CNAMEs inside the zone from a name of the zone on, to which the CNAMEs `before` lead."""
        zone, records, owner = self.zone, list(before), name if before else OWNER
        while True:
            if (target := zone.cname_target(name)) is None:
                end = zone.answer_name(name, kind) or self._answer_inside(name, kind)
                if end is _FAILED:
                    return _Chain(())
                rest = tuple(name + each[2:] for each in end.answers)
                return _Chain((), end=Reply.build(end.rcode, (*records, *rest), end.authority, end.additional))
            if len(records) >= LONGEST_CHAIN:
                return _Chain(())
            records.append(encode_record(owner, CNAME, zone.ttl, target))
            if not zone.contains(target):
                return _Chain(tuple(records), outside=target)
            name = owner = target

    async def answer_slowly(self, query: Query) -> Reply:
        if self.forwarder is None:
            return _REFUSED
        if self.zone.cname_target(query.name) is None:
            answer = await self.forwarder.resolve(query)
            return self._enter_alias(answer, query.type) or answer.build_reply(self.forwarder.now())
        chain = self._follow_aliases(query.name, query.type)
        if not chain.outside:
            return chain.end
        further = query._replace(name=chain.outside, question=chain.outside + query.question[-4:])
        answer = await self.forwarder.resolve(further)
        if answer.rcode == SERVFAIL:
            return _FAILED
        if (reply := self._enter_alias(answer, query.type, chain.records, chain.outside)) is not None:
            return reply
        records, authority = answer.current_records(self.forwarder.now())
        reply = Reply.build(answer.rcode, (*chain.records, *records), authority, authoritative=False)
        return replace(reply, is_cut=True) if answer.is_cut else reply
