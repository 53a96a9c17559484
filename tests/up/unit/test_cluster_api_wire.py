"""Requests that two readers of HTTP could understand in two ways get one answer, and their connection ends."""

import asyncio

import pytest
from tests.up.unit.cluster_here import Here, in_cluster

pytestmark = pytest.mark.attack

PATH = b"/api/v1/namespaces/default/configmaps"
SECOND = b"GET /api/v1/namespaces/default/secrets HTTP/1.1\r\nHost: x\r\nX-User: admin\r\n\r\n"


def post(*headers: bytes, body: bytes = b"") -> bytes:
    lines = (b"POST " + PATH + b" HTTP/1.1", b"Host: x", b"X-User: view", b"Content-Type: application/json", *headers)
    return b"\r\n".join((*lines, b"", b"")) + body


REFUSED = {
    "length and chunks": post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n" + SECOND),
    "two lengths": post(b"Content-Length: 4", b"Content-Length: 5", body=b"abcde" + SECOND),
    "a length with a sign": post(b"Content-Length: +4", body=b"abcd" + SECOND),
    "chunks by another name": post(b"Transfer-Encoding: xchunked", body=b"5\r\nabcde\r\n0\r\n\r\n" + SECOND),
    "a chunk below zero": post(b"Transfer-Encoding: chunked", body=b"-5\r\nabcde\r\n0\r\n\r\n" + SECOND),
    "a chunk without end": post(b"Transfer-Encoding: chunked", body=b"F" * 17 + b"\r\nabc" + SECOND),
    "a folded header": b"GET " + PATH + b" HTTP/1.1\r\nHost: x\r\nX-A:\r\n b\r\nX-User: view\r\n\r\n" + SECOND,
    "no carriage returns": b"GET " + PATH + b" HTTP/1.1\nHost: x\n\n" + SECOND,
    "a zero byte": b"GET " + PATH + b" HTTP/1.1\r\nHost: x\r\nX-A: a\0b\r\n\r\n" + SECOND,
    "a space before the colon": post(b"Content-Length : 4", body=b"abcd" + SECOND),
    "bytes of no text": b"GET /api/v1/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n" + SECOND,
    "an upgrade with a body": post(
        b"Upgrade: h2c", b"Connection: upgrade", b"Content-Length: %d" % len(SECOND), body=SECOND
    ),
    "an upgrade with chunks": post(
        b"Upgrade: h2c", b"Connection: upgrade", b"Transfer-Encoding: chunked", body=SECOND
    ),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SECOND,
}


@pytest.mark.parametrize("sent", REFUSED.values(), ids=[*REFUSED])
@in_cluster()
async def test_what_can_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_answered(
    here: Here, sent: bytes
) -> None:
    host, _, port = here.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    answer = await reader.read()
    writer.close()
    assert answer.split(b" ")[1] == b"400", answer
    assert answer.count(b"HTTP/1") == 1
    assert (await here.send("GET", "/api/v1/namespaces"))[0] == 200


@in_cluster()
async def test_a_trailer_is_no_header_and_a_refused_body_no_request(here: Here) -> None:
    host, _, port = here.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(post(b"Content-Length: %d" % len(SECOND), body=SECOND))
    writer.write(
        post(b"Connection: close", b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\nX-User: admin\r\n\r\n")
    )
    answer = await reader.read()
    writer.close()
    assert [each[:3] for each in answer.split(b"HTTP/1.1 ")[1:]] == [b"403", b"403"]
