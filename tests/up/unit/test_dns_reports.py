"""What people report of other DNS servers: denials, turns, names, connections that carry several questions."""

import asyncio
import contextlib
import struct
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.fakes.clock import Clock
from tests.fakes.names import endpoint, external, headless, piece
from tests.fakes.upstream import records, upstream
from tests.up.unit.dns_process import running
from tests.up.unit.test_dns_forgery import answer_to, wire_record
from tests.up.unit.test_dns_server import SERVICE
from tests.up.unit.test_dns_upstream import SOA, forwarder, question, resolve, zone

from vipwire.model.net import Address
from vipwire.watched_objects import event
from vipwire_up.dns.messages.message import NOERROR, NXDOMAIN, SERVFAIL, Reply, encode_answer, encode_record
from vipwire_up.dns.messages.names import format_dashed_address, parse_dashed_address
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.upstream.answer import read_answer
from vipwire_up.dns.zone import Zone

CNAME = "example.org. 3600 IN CNAME gone.example.org."
WITH_SOA = "example.org. 3600 IN SOA ns. host. 1 2 3 4 1"


@pytest.mark.parametrize(("authority", "asked"), [((), 3), ((WITH_SOA,), 2)])
async def test_an_alias_that_leads_to_nothing_is_a_denial(authority: tuple[str, ...], asked: int) -> None:
    clock = Clock()
    async with upstream(records(CNAME, authority=authority)) as there:
        ours = forwarder(there.server, clock=clock)
        for later in (0, 0.5, 1):
            clock.now += later
            assert (await ours.resolve(question())).rcode == NOERROR
        assert len(there.asked) == asked


ALIAS = "example.org. 60 IN CNAME www.example.org."


@pytest.mark.parametrize("kind", ["A", "MX", "SRV", "TXT"])
@pytest.mark.parametrize("aliased", [False, True])
async def test_answers_take_turns_behind_their_aliases(kind: str, aliased: bool) -> None:  # noqa: FBT001
    values = {"A": "192.0.2.{}", "MX": "10 m{}.example.org.", "SRV": "0 0 80 s{}.example.org.", "TXT": '"{}"'}
    owner = "www.example.org." if aliased else "@"
    texts = [f"{owner} 60 IN {kind} {values[kind].format('1' * each)}" for each in (1, 2)]
    texts.append(f"{owner} 60 IN {kind} {values[kind].format(3)}")
    async with upstream(records(*([ALIAS] if aliased else []), *texts)) as there:
        ours, query = forwarder(there.server), question(kind=kind)
        answer = await ours.resolve(query)
        seen = set()
        for turn in range(6):
            told = dns.message.from_wire(encode_answer(query, answer.build_reply(ours.now()), turn=turn))
            assert [each.rdtype.name for each in told.answer] == (["CNAME"] if aliased else []) + [kind]
            assert len(told.answer[-1]) == 3
            seen.add(told.answer[-1][0].to_text())
        assert len(seen) == 3


@pytest.mark.parametrize(("name", "kind"), [("out", "A"), ("db", "A"), ("_main._tcp.db", "SRV")])
async def test_endpoints_take_turns_behind_their_names(name: str, kind: str) -> None:
    ours = zone(headless("db"), external("out", "db.shop.svc.cluster.local"))
    ours.apply(event.Upserted(piece("db", *(endpoint(f"10.1.0.{each}", f"db-{each}") for each in (8, 9, 10)))))
    resolver, query = Resolver(ours, None), question(f"{name}.shop.svc.cluster.local", kind)
    firsts = set()
    for turn in range(6):
        reply = resolver.answer_at_once(query) or await resolver.answer_slowly(query)
        firsts.add(dns.message.from_wire(encode_answer(query, reply, turn=turn)).answer[-1][0].to_text())
    assert len(firsts) == 3


def test_records_of_several_types_keep_their_places() -> None:
    answers = (
        encode_record(b"\xc0\x0c", 5, 9, b"\1b\0"),
        *(encode_record(b"\1b\0", 1, 9, bytes((10, 0, 0, each))) for each in (1, 2)),
        encode_record(b"\1b\0", 46, 9, b"signature"),
    )
    query, reply = question(), Reply.build(NOERROR, answers)
    for turn in range(3):
        wire = encode_answer(query, reply, turn=turn)
        place = wire.index(answers[0])
        assert wire[place:-11] == b"".join((answers[0], answers[1 + turn % 2], answers[2 - turn % 2], answers[3]))


@pytest.mark.parametrize(
    ("address", "label"),
    [
        (bytes((10, 0, 0, 1)), "10-0-0-1"),
        (bytes.fromhex("fd000001" + "00" * 12), "fd00-1--0"),
        (bytes.fromhex("00" * 15 + "01"), "0--1"),
        (bytes(16), "0--0"),
        (bytes.fromhex("fd00" + "00" * 13 + "01"), "fd00--1"),
    ],
)
def test_labels_of_addresses_are_valid_and_read_again(address: bytes, label: str) -> None:
    assert format_dashed_address(Address(address)) == label
    assert parse_dashed_address(label.encode()) == address


@pytest.mark.parametrize("name", ["1.1.96.10.in-addr.arpa", f"{'0.' * 32}ip6.arpa", "gone.shop.svc.cluster.local"])
def test_before_all_is_listed_no_name_that_may_be_ours_is_denied(name: str) -> None:
    for forwarding in (None, forwarder()):
        reply = Resolver(Zone("cluster.local"), forwarding).answer_at_once(question(name))
        assert reply is not None
        assert reply.rcode == SERVFAIL


@pytest.mark.parametrize("rcode", [NOERROR, NXDOMAIN])
async def test_a_denial_behind_an_external_name_has_its_soa(rcode: int) -> None:
    async with upstream(records(rcode=rcode, authority=(SOA,))) as there:
        resolver = Resolver(zone(external("out", "gone.example.org")), forwarder(there.server))
        answer = await resolve(resolver, question("out.shop.svc.cluster.local"))
        assert answer.rcode() == rcode
        assert [each.to_text() for each in answer.authority] == [SOA]


async def test_what_is_cut_is_passed_on_where_tcp_is_closed() -> None:
    def cut(message: dns.message.Message, protocol: str) -> bytes | None:
        made = records("@ 60 IN A 192.0.2.1", "@ 60 IN A 192.0.2.2")(message, protocol)
        assert made is not None
        return None if protocol == "tcp" else made[:2] + bytes((made[2] | 2,)) + made[3:]

    async with upstream(cut) as there:
        resolver, query = Resolver(zone(), forwarder(there.server, patience=5)), question()
        told = dns.message.from_wire(encode_answer(query, await resolver.answer_slowly(query)))
        assert told.flags & dns.flags.TC
        assert len(told.answer[0]) == 2


BROKEN = [
    (16, b""),  # TXT without strings
    (65, b"\0\1\0\0\2\0\0"),  # HTTPS with only no-default-alpn
    (257, b"\0\0value"),  # CAA with an empty tag
    (29, b"\1"),  # LOC
    (1234, b"anything"),
]


@pytest.mark.parametrize(("kind", "content"), BROKEN)
def test_a_record_without_names_is_passed_on_though_it_is_unreadable(kind: int, content: bytes) -> None:
    query = question(kind=f"TYPE{kind}")
    answer = read_answer(answer_to(query, wire_record(kind, 1, content)), query, 0.0)
    assert answer.sections[0][0].endswith(content)
    assert answer.current_records(0.0)[0][0].endswith(content)
    beside = answer_to(question(), wire_record(1, 1, bytes(4)), wire_record(kind, 1, content))
    assert read_answer(beside, question(), 0.0).is_useful


async def exchange(port: int, *messages: bytes) -> list[dns.message.Message]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(struct.pack("!H", len(each)) + each for each in messages))
    found = [
        dns.message.from_wire(await reader.readexactly(int.from_bytes(await reader.readexactly(2)))) for _ in messages
    ]
    writer.close()
    return found


@pytest.mark.slow
async def test_over_tcp_no_question_waits_for_another_and_each_is_answered(tmp_path: Path) -> None:
    (tmp_path / "web.yaml").write_text(SERVICE % ("web", "10.96.0.10"))
    slow = dns.message.make_query("slow.example.org", "A", id=1).to_wire()
    ours = dns.message.make_query("web.shop.svc.cluster.local", "A", id=2).to_wire()
    two = ours[:4] + b"\0\2" + ours[6:]
    async with upstream(lambda _message, _protocol: None) as there:
        with contextlib.ExitStack() as stack:
            server = await asyncio.to_thread(stack.enter_context, running(tmp_path, "--upstream", str(there.server)))
            found = await asyncio.wait_for(exchange(server.port, slow, ours, two, ours), 60)
    assert [(each.id, each.rcode()) for each in found] == [(2, 0), (2, 1), (2, 0), (1, 2)]


LOOPS = """
apiVersion: v1
kind: Service
metadata: {name: $name, namespace: shop}
spec: {type: ExternalName, externalName: $to}
---
"""
ALIASES = {
    "self": "self.shop.svc.cluster.local",
    "dotted": "DOTTED.shop.svc.cluster.local.",
    "there": "back.shop.svc.cluster.local",
    "back": "there.shop.svc.cluster.local",
    "into": "self.shop.svc.cluster.local",
    "good": "end.shop.svc.cluster.local",
    "end": "missing.shop.svc.cluster.local",
}


def test_aliases_that_lead_in_a_circle_are_a_failure_and_have_no_names_below_them(tmp_path: Path) -> None:
    texts = (LOOPS.replace("$name", name).replace("$to", to) for name, to in ALIASES.items())
    (tmp_path / "all.yaml").write_text("".join(texts))
    with running(tmp_path) as server:
        for name in ALIASES:
            whole = f"{name}.shop.svc.cluster.local"
            for kind in ("A", "AAAA", "SRV"):
                told = server.dig(whole, kind)
                if name in ("good", "end"):
                    assert (told.status, len(told.answers)) == ("NXDOMAIN", 2 if name == "good" else 1)
                else:
                    assert (told.status, told.answers) == ("SERVFAIL", ()), name
                below = server.dig(f"web.{whole}", kind)
                assert (below.status, below.answers) == ("NXDOMAIN", ()), "an alias has no endpoints with names"
