"""Whatever the bytes: a question or a refusal comes of them, from upstream an answer or a DecodeError."""

import contextlib
import struct

import dns.exception
import dns.message
from hypothesis import example, given
from hypothesis import strategies as st

from vipwire.errors import ConfigError, DecodeError
from vipwire_up.dns.messages.message import FORMERR, NOTIMP, Query, Refusal, Reply, encode_answer, read_query
from vipwire_up.dns.messages.names import parse_name
from vipwire_up.dns.resolver import Resolver
from vipwire_up.dns.settings import parse_server, read_resolv_conf
from vipwire_up.dns.upstream.answer import is_answer_to, read_answer
from vipwire_up.dns.zone import Zone

QUESTION = dns.message.make_query("web.shop.svc.cluster.local", "A", use_edns=0, payload=1232).to_wire()
ANSWER = dns.message.make_response(dns.message.from_wire(QUESTION)).to_wire()


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw a message with some bytes changed, cut, or more behind it."""
    data = bytearray(whole)
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(data) - 1), st.integers(0, 255)), max_size=6)):
        data[place] = value
    end = draw(st.integers(0, len(data)))
    return bytes(data[:end] if draw(st.booleans()) else data) + draw(st.binary(max_size=20))


@given(st.binary(max_size=600) | damaged(QUESTION) | damaged(ANSWER))
@example(QUESTION)
@example(b"")
@example(QUESTION.replace(b"cluster", b"clAster"))
@example(QUESTION[:12] + b"\xc0\x0c" + QUESTION[-15:])
@example(QUESTION[:4] + b"\0\2" + QUESTION[6:])
def test_any_bytes_are_a_question_or_refused(data: bytes) -> None:
    read = read_query(data)
    if isinstance(read, Refusal):
        if len(data) >= 12 and not data[2] & 0x80:
            assert read.answer[:2] == data[:2], "who asked learns that it was no question"
        else:
            assert read.answer == b"", "an answer is not answered"
        return
    zone = Zone("cluster.local")
    reply = Resolver(zone, None).answer_at_once(read)
    assert reply is not None
    wire = encode_answer(read, reply, read.limit)
    assert len(wire) <= read.limit
    assert is_answer_to(wire, read.id, read.question), "the letters are those of the question"
    dns.message.from_wire(wire)


@given(damaged(QUESTION))
def test_what_is_read_as_a_question_is_what_dnspython_reads(data: bytes) -> None:
    read = read_query(data)
    if isinstance(read, Query):
        # Only what stands behind the question may differ: the contents of OPT's options are not looked at here.
        name = dns.message.from_wire(data[:10] + b"\0\0" + read.question, question_only=True).question[0].name
        assert name.canonicalize().to_wire() == read.name


@given(st.binary(max_size=300) | damaged(ANSWER))
def test_any_answer_from_upstream_is_read_or_a_decode_error(data: bytes) -> None:
    query = read_query(QUESTION)
    assert isinstance(query, Query)
    if not is_answer_to(data, query.id, query.question):
        return
    with contextlib.suppress(DecodeError):
        answer = read_answer(data, query, 0.0)
        dns.message.from_wire(encode_answer(query, answer.build_reply(1.0)))


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_a_value_error(text: str) -> None:
    try:
        name = parse_name(text)
    except ValueError:
        return
    assert name.endswith(b"\0")
    assert len(name) <= 255


@given(st.text(max_size=80))
def test_any_text_is_a_server_or_a_config_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert 0 < parse_server(text).port < 65536
    with contextlib.suppress(ConfigError):
        read_resolv_conf(f"nameserver {text}", "/etc/resolv.conf")


def test_counts_that_are_no_question_get_their_code() -> None:
    def count(questions: int, opcode: int = 0) -> int:
        header = struct.pack("!HHHHHH", 7, opcode << 11, questions, 0, 0, 0)
        read = read_query(header + QUESTION[12:-11] * questions)
        return read.rcode if isinstance(read, Refusal) else 0

    assert (count(0), count(1), count(2), count(1, opcode=5)) == (FORMERR, 0, FORMERR, NOTIMP)
    assert encode_answer(read_question(), Reply())[:2] == QUESTION[:2]


def read_question() -> Query:
    read = read_query(QUESTION)
    assert isinstance(read, Query)
    return read
