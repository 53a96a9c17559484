"""Forwarding: who is asked, how often, what is kept and for how long."""

import asyncio
import struct
from collections.abc import Awaitable, Callable

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest
from tests.fakes.clock import Clock
from tests.fakes.names import external, service
from tests.fakes.upstream import Upstream, records, upstream

from vipwire.watched_objects import event
from vipwire_up.dns.messages.message import NOERROR, NXDOMAIN, REFUSED, SERVFAIL, Query, encode_answer, read_query
from vipwire_up.dns.objects import DnsKind, DnsService
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.upstream.answer import Cache
from vipwire_up.dns.upstream.exchange import Attempt, Forwarder, UpstreamServer
from vipwire_up.dns.zone import Zone

A_RECORD = "example.org. 60 IN A 192.0.2.1"
ANY_NAME = "@ 60 IN A 192.0.2.1"
SOA = "example.org. 900 IN SOA ns. host. 1 2 3 4 30"


def question(name: str = "example.org", kind: str = "A", *, do: bool = False) -> Query:
    read = read_query(dns.message.make_query(name, kind, use_edns=0, want_dnssec=do, id=7).to_wire())
    assert isinstance(read, Query)
    return read


def forwarder(
    *servers: UpstreamServer,
    clock: Clock | None = None,
    capacity: int = 100,
    witness: Callable[[Attempt], None] = lambda _asked: None,
    patience: float = 20.0,
    deadline: float = 50.0,
) -> Forwarder:
    return Forwarder(
        servers, Cache(capacity), clock=clock or Clock(), witness=witness, patience=patience, deadline=deadline
    )


async def resolve(resolver: Resolver, query: Query) -> dns.message.Message:
    reply = resolver.answer_at_once(query) or await resolver.answer_slowly(query)
    return dns.message.from_wire(encode_answer(query, reply, recursion=True))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def zone(*services: DnsService) -> Zone:
    made = Zone("cluster.local")
    for each in services:
        made.apply(event.Upserted(each))
    return made


async def test_an_answer_is_kept_for_its_ttl_which_runs_down() -> None:
    clock = Clock()

    async with upstream(records(A_RECORD)) as there:
        resolver = Resolver(zone(), forwarder(there.server, clock=clock))
        seen = []
        for later in (0, 20, 39, 2):
            clock.now += later
            seen.append((await resolve(resolver, question())).answer[0].ttl)
        assert seen == [60, 40, 1, 60]
        assert there.asked == [("udp", "example.org."), ("udp", "example.org.")]


async def test_a_denial_is_kept_as_long_as_its_soa_says() -> None:
    clock = Clock()

    async with upstream(records(rcode=NXDOMAIN, authority=(SOA,))) as there:
        resolver = Resolver(zone(), forwarder(there.server, clock=clock))
        for later in (0, 29, 2):
            clock.now += later
            answer = await resolve(resolver, question())
            assert answer.rcode() == NXDOMAIN
            assert answer.authority
        assert len(there.asked) == 2


async def test_a_denial_without_soa_is_not_kept() -> None:
    async with upstream(records()) as there:
        resolver = Resolver(zone(), forwarder(there.server))
        for _ in range(2):
            assert (await resolve(resolver, question())).rcode() == NOERROR
        assert len(there.asked) == 2


async def test_equal_questions_at_a_time_are_asked_once_and_others_for_themselves() -> None:
    async with upstream(records(A_RECORD)) as there:
        ours = forwarder(there.server)
        queries = [question(), question("EXAMPLE.org"), question(kind="AAAA"), question(do=True)]
        answers = await asyncio.gather(*(ours.resolve(query) for query in queries))
        assert {answer.rcode for answer in answers} == {NOERROR}
        assert len(there.asked) == 3


async def test_who_waits_for_anothers_question_is_told_when_that_one_is_given_up() -> None:
    came = asyncio.Event()

    def silent(_message: dns.message.Message, _protocol: str) -> None:
        came.set()

    async with upstream(silent) as there:
        ours = forwarder(there.server)
        first = asyncio.ensure_future(ours.resolve(question()))
        await came.wait()
        second = asyncio.ensure_future(ours.resolve(question()))
        asyncio.get_running_loop().call_soon(first.cancel)
        assert (await second).rcode == SERVFAIL
        assert len(there.asked) == 1


async def test_what_is_cut_over_udp_is_asked_over_tcp() -> None:
    many = tuple(f"example.org. 60 IN TXT {'x' * 200}{index}" for index in range(10))

    def answering(message: dns.message.Message, protocol: str) -> bytes | None:
        if protocol == "tcp":
            return records(*many)(message, protocol)
        response = dns.message.make_response(message)
        response.flags |= dns.flags.TC
        return response.to_wire()

    async with upstream(answering) as there:
        resolver = Resolver(zone(), forwarder(there.server))
        query = question(kind="TXT")
        answer = await resolve(resolver, query)
        assert len(answer.answer[0]) == 10
        assert [protocol for protocol, _ in there.asked] == ["udp", "tcp"]
        cut = dns.message.from_wire(encode_answer(query, await resolver.answer_slowly(query), query.limit))
        assert cut.flags & dns.flags.TC
        assert 0 < len(cut.answer[0]) < 10


async def test_the_next_server_is_asked_where_one_is_silent_refuses_or_talks_nonsense() -> None:
    def wrong_number(message: dns.message.Message, protocol: str) -> bytes | None:
        good = records(A_RECORD)(message, protocol)
        assert good is not None
        return struct.pack("!H", message.id ^ 1) + good[2:]

    def nonsense(message: dns.message.Message, protocol: str) -> bytes | None:
        good = records(A_RECORD)(message, protocol)
        assert good is not None
        return good[:7] + b"\x09" + good[8:]

    async def story(first: Upstream, *, asked: list[Attempt]) -> None:
        def noted(each: Attempt) -> None:
            asked.append(each)
            ours.patience = 20.0  # the other one has all the time that a loaded machine takes

        async with upstream(records(A_RECORD)) as second:
            ours = forwarder(first.server, second.server, witness=noted, patience=0.05)
            assert (await ours.resolve(question())).rcode == NOERROR
            before = len(first.asked)
            assert (await ours.resolve(question("www.example.org"))).rcode == NOERROR
            assert len(first.asked) == before, "who failed is asked last for a while"

    for answering in (lambda _message, _protocol: None, wrong_number, nonsense):
        asked: list[Attempt] = []
        async with upstream(answering) as first:
            await story(first, asked=asked)
        assert [each.result for each in asked] == ["failed", "answered", "answered"]


async def test_servfail_of_all_is_servfail_and_is_held_for_a_moment() -> None:
    clock = Clock()

    async with upstream(records(rcode=SERVFAIL)) as there:
        ours = forwarder(there.server, clock=clock)
        for later in (0, 0.5, 1):
            clock.now += later
            assert (await ours.resolve(question())).rcode == SERVFAIL
        assert len(there.asked) == 2


async def test_external_name_is_followed_out_of_the_zone() -> None:
    ours = zone(external("out", "www.example.org"), external("hop", "out.shop.svc.cluster.local"))

    answering = records("www.example.org. 60 IN CNAME example.org.", A_RECORD)
    async with upstream(answering) as there:
        resolver = Resolver(ours, forwarder(there.server))
        answer = await resolve(resolver, question("hop.shop.svc.cluster.local"))
        assert [rrset.to_text() for rrset in answer.answer] == [
            "hop.shop.svc.cluster.local. 5 IN CNAME out.shop.svc.cluster.local.",
            "out.shop.svc.cluster.local. 5 IN CNAME www.example.org.",
            "www.example.org. 60 IN CNAME example.org.",
            A_RECORD,
        ]
        assert there.asked == [("udp", "www.example.org.")]


async def test_the_zones_own_names_are_never_asked_for_upstream() -> None:
    async with upstream(records(A_RECORD)) as there:
        resolver = Resolver(zone(service("web", "10.96.0.1")), forwarder(there.server))
        for name in ("web.shop.svc.cluster.local", "gone.shop.svc.cluster.local", "example.org.cluster.local"):
            assert resolver.answer_at_once(question(name)) is not None
        assert not there.asked


IN_ZONE = "shop.svc.cluster.local."
CHAINS = {
    "a Service": ("web", "NOERROR", ["CNAME", "A"]),
    "a Service by other letters": ("WEB", "NOERROR", ["CNAME", "A"]),
    "a name that is not there": ("no", "NXDOMAIN", ["CNAME"]),
    "an ExternalName to a Service": ("alias", "NOERROR", ["CNAME", "CNAME", "A"]),
    "an ExternalName to the outside": ("out", "NOERROR", ["CNAME", "CNAME"]),
    "an ExternalName to the question": ("back", "NOERROR", ["CNAME", "CNAME"]),
}


@pytest.mark.parametrize("case", list(CHAINS))
async def test_an_alias_that_leads_into_the_zone_is_answered_by_it(case: str) -> None:
    name, rcode, kinds = CHAINS[case]
    others = {"alias": f"web.{IN_ZONE}", "out": "elsewhere.org.", "back": "example.org."}
    ours, outer = zone(), zone()
    web = service("web", "10.96.0.10")
    for each, aliases in ((ours, others), (outer, {"far": "example.org."})):
        made = (web, *(external(alias, to.rstrip(".")) for alias, to in aliases.items()))
        each.apply(event.Listed(DnsKind.SERVICE, made))
        each.apply(event.Listed(DnsKind.SLICE, ()))
    forged = records(f"example.org. 600 IN CNAME {name}.{IN_ZONE}", f"{name}.{IN_ZONE} 600 IN A 192.0.2.6")
    async with upstream(forged) as there:
        resolver = Resolver(ours, forwarder(there.server))
        for _ in range(2):  # asked for, and kept
            found = await resolve(resolver, question())
            assert dns.rcode.to_text(found.rcode()) == rcode
            assert [dns.rdatatype.to_text(each.rdtype) for each in found.answer] == kinds
            assert not found.flags & dns.flags.AA
            if kinds[-1] == "A":
                assert [each.to_text() for each in found.answer[-1]] == ["10.96.0.10"]
        assert len(there.asked) == 1
        asked = await resolve(resolver, question(kind="CNAME"))
        assert asked.answer[0][0].to_text().lower() == f"{name}.{IN_ZONE}".lower()
        back = await resolve(Resolver(outer, forwarder(there.server)), question(f"far.{IN_ZONE}"))
        ends = [each.to_text() for found in back.answer for each in found if found.rdtype == dns.rdatatype.A]
        assert ends == (["10.96.0.10"] if name.lower() == "web" else [])


def test_without_a_server_upstream_other_names_are_refused() -> None:
    reply = Resolver(zone(), None).answer_at_once(question())
    assert reply is not None
    assert dns.rcode.Rcode(reply.rcode) == REFUSED


async def test_the_cache_holds_no_more_than_it_may() -> None:
    async with upstream(records(ANY_NAME)) as there:
        ours = forwarder(there.server, capacity=3)
        for index in range(5):
            await ours.resolve(question(f"name-{index}.example.org"))
        assert len(ours.cache) == 3
        assert ours.find_cached(question("name-4.example.org")) is not None
        assert ours.find_cached(question("name-0.example.org")) is None
