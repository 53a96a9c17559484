"""What one client, or one question, cannot do to a DNS server that all share."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import dns.message
import pytest
from tests.fakes.dns_here import Here, dns_here
from tests.fakes.names import service
from tests.fakes.upstream import upstream
from tests.up.unit.test_dns_upstream import forwarder, run, zone

from vipwire.watched_objects.event import Listed
from vipwire_up.dns import server as server_module
from vipwire_up.dns import zone as zone_module
from vipwire_up.dns.limits import ClientLimits
from vipwire_up.dns.messages.message import NOERROR, SERVFAIL, Query, Reply, read_query
from vipwire_up.dns.objects import DnsKind, DnsService
from vipwire_up.dns.records import Records, build_records
from vipwire_up.dns.resolver import Resolver

pytestmark = [pytest.mark.attack, pytest.mark.slow]

WEB = "web.shop.svc.cluster.local"


def wire(name: str = WEB, number: int = 1) -> bytes:
    return dns.message.make_query(name, "A", id=number).to_wire()


def code(answer: bytes) -> int:
    return answer[3] & 15


def with_server(
    resolver: Resolver, story: Callable[[Here], Awaitable[None]], limits: ClientLimits | None = None
) -> None:
    async def all_of_it() -> None:
        async with dns_here(resolver, limits) as here:
            await story(here)

    run(all_of_it)


def web() -> Resolver:
    return Resolver(zone(service("web", "10.96.0.1")), None)


def test_a_client_has_its_questions_of_a_second_and_the_next_second_anew() -> None:
    limits = ClientLimits(rate=2)
    assert [limits.count_question("a", now) for now in (10.0, 10.1, 10.2)] == [True, True, False]
    assert limits.count_question("b", 10.3)
    assert limits.count_question("a", 11.0)
    assert all(ClientLimits(rate=0).count_question("a", 1.0) for _ in range(100_000))


def test_nothing_is_kept_of_clients_that_have_nothing_under_way() -> None:
    limits = ClientLimits(waiting=1, connections=1)
    for index in range(1000):
        client = f"10.0.{index // 256}.{index % 256}"
        assert limits.begin_wait(client)
        assert not limits.begin_wait(client)
        limits.end_wait(client)
        assert limits.begin_connection(client)
        assert not limits.begin_connection(client)
        limits.end_connection(client)
        limits.count_question(client, float(index))
    assert limits.clients == 1, "the last one, for its count of this second"


def test_what_is_beyond_the_rate_is_dropped_and_counted() -> None:
    async def story(here: Here) -> None:
        for number in range(5):
            here.client.send(wire(number=number))
        answers = [await here.client.answers.get() for _ in range(2)]
        assert [code(answer) for answer in answers] == [NOERROR] * 2
        # What was sent before is read before: the connection's question comes last.
        reader, writer = await here.connect()
        writer.write(len(wire()).to_bytes(2) + wire())
        assert await reader.read() == b""
        writer.close()
        assert here.tally.dropped["rate"] == 4

    class OneSecond(ClientLimits):
        """All of it within one second, however long the machine takes."""

        def count_question(self, client: str, _now: float) -> bool:
            return super().count_question(client, 1.0)

    with_server(web(), story, OneSecond(rate=2))


async def test_one_client_has_not_all_the_places_of_those_that_wait() -> None:
    async with upstream(lambda _message, _protocol: None) as silent:
        resolver = Resolver(zone(service("web", "10.96.0.1")), forwarder(silent.server))
        async with dns_here(resolver, ClientLimits(waiting=3)) as here:
            for number in range(4):
                here.client.send(wire(f"{number}.example.org", number))
            refused = await here.client.answers.get()
            assert (refused[:2], code(refused)) == (b"\0\3", SERVFAIL)
            assert code(await here.client.ask(wire(number=9))) == NOERROR, "what is in memory is answered"
            assert here.tally.dropped["waiting"] == 1


def test_one_client_has_not_all_the_connections() -> None:
    async def story(here: Here) -> None:
        first, second = await here.connect(), await here.connect()
        second[1].write(len(wire()).to_bytes(2) + wire())
        assert await second[0].readexactly(2)
        third = await here.connect()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await third[0].readexactly(1)
        for _, writer in (first, second, third):
            writer.close()

    with_server(web(), story, ClientLimits(connections=2))


def test_who_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions without end and no look at the answers: the socket is gone after the patience, not held for ever."""
    monkeypatch.setattr(server_module, "IDLE", 0.2)

    async def story(here: Here) -> None:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            deaf.setblocking(False)  # noqa: FBT003  # the socket module's signature
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", here.port))
            with pytest.raises(OSError, match=r"reset|Broken pipe"):
                await loop.sock_sendall(deaf, (len(wire()).to_bytes(2) + wire()) * 200_000)

    with_server(web(), story, ClientLimits(rate=0))


def test_a_question_that_makes_us_fail_is_answered_and_counted() -> None:
    class Broken(Resolver):
        def answer_at_once(self, query: Query) -> Reply | None:
            if query.name.startswith(b"\5quick"):
                raise ZeroDivisionError
            return None if query.name.startswith(b"\4slow") else super().answer_at_once(query)

        async def answer_slowly(self, query: Query) -> Reply:
            raise IndexError(query.name)

    async def story(here: Here) -> None:
        for number, name in enumerate(("quick.example.org", "slow.example.org") * 3):
            assert code(await here.client.ask(wire(name, number))) == SERVFAIL
        reader, writer = await here.connect()
        for name, expected in (("quick.example.org", SERVFAIL), ("slow.example.org", SERVFAIL), (WEB, NOERROR)):
            writer.write(len(wire(name)).to_bytes(2) + wire(name))
            answer = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
            assert code(answer) == expected
        writer.close()
        assert code(await here.client.ask(wire(number=77))) == NOERROR
        assert here.tally.failures == 8

    with_server(Broken(zone(service("web", "10.96.0.1")), None), story)


def test_a_service_whose_records_cannot_be_made_costs_no_other_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def explosive(made: DnsService, *rest: object) -> Records:
        if made.name.name == "boom":
            raise ZeroDivisionError("division by zero")
        return build_records(made, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(zone_module, "build_records", explosive)
    here = zone()
    services = (service("boom", "10.96.0.1"), service("web", "10.96.0.2"))
    (problem,) = here.apply(Listed(DnsKind.SERVICE, services))
    assert (problem.object.name, "ZeroDivisionError" in problem.message) == ("boom", True)
    assert Resolver(here, None).answer_at_once(read(wire())) is not None
    assert here.sizes["services"] == 2


def read(data: bytes) -> Query:
    query = read_query(data)
    assert isinstance(query, Query)
    return query
