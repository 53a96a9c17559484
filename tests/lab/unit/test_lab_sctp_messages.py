"""The lab's own SCTP: a question and its answer, packets that are damaged or somebody else's."""

import contextlib
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.errors import DecodeError
from vipwire_lab.echo_servers.answer import SocketAddress
from vipwire_lab.echo_servers.sctp_messages import (
    ABORT,
    COOKIE_ACK,
    DATA,
    INIT,
    SACK,
    Asker,
    Chunk,
    Packet,
    Responder,
    crc32c,
)

CLIENT, SERVER = "10.0.0.1", "10.0.0.2"


def responder(*ports: int) -> Responder:
    tags = count(1000)
    made = Responder(lambda saw, local: f"{saw} at {local}\n".encode(), lambda: next(tags))
    made.ports.update(ports)
    return made


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C in the catalogue of CRCs


def test_a_question_is_answered() -> None:
    server, client = responder(80), Asker(4000, 80, tag=7)
    opening, nothing = client.receive(server.receive(client.first_packet(), CLIENT, SERVER))
    assert nothing == b""
    reply = server.receive(opening, CLIENT, SERVER)
    assert [chunk.type for chunk in Packet.decode(reply).chunks] == [COOKIE_ACK, SACK, DATA]
    ending, line = client.receive(reply)
    assert line == b"10.0.0.1:4000 at 10.0.0.2:80\n"
    assert server.receive(ending, CLIENT, SERVER) == b""
    assert server.receive(opening, CLIENT, SERVER) == b"", "the association is over"


def test_a_closed_port_aborts() -> None:
    client = Asker(4000, 81, tag=7)
    with pytest.raises(ConnectionRefusedError):
        client.receive(responder(80).receive(client.first_packet(), CLIENT, SERVER))


def test_packets_of_others_are_passed_over() -> None:
    server, client = responder(80), Asker(4000, 80, tag=7)
    reply = server.receive(Asker(4001, 80, tag=8).first_packet(), CLIENT, SERVER)
    assert client.receive(reply) == (b"", b"")
    forged = Packet(80, 4000, 9, (Chunk(ABORT),)).encode()
    assert client.receive(forged) == (b"", b""), "its tag is not ours"
    stranger = Packet(4002, 80, 1, (Chunk(DATA, bytes(20)),)).encode()
    assert server.receive(stranger, CLIENT, SERVER) == b""


def test_a_wrong_checksum_is_refused() -> None:
    packet = bytearray(Asker(4000, 80, tag=7).first_packet())
    packet[2] ^= 1  # the destination port, as a NAT without checksums would change it
    with pytest.raises(DecodeError, match="wrong checksum"):
        Packet.decode(bytes(packet))


def test_a_chunk_that_is_cut_short_is_refused() -> None:
    with pytest.raises(DecodeError, match="cut short"):
        responder(80).receive(Packet(1, 80, 0, (Chunk(INIT, bytes(4)),)).encode(), CLIENT, SERVER)
    with pytest.raises(DecodeError, match="cut short"):
        Packet.decode(b"1234")


def test_the_server_forgets_the_oldest_of_too_many() -> None:
    server = responder(80)
    for port in range(10_100):
        server.receive(Asker(port, 80, tag=7).first_packet(), CLIENT, SERVER)
    assert len(server.associations) == 10_000
    assert (SocketAddress(CLIENT, 99), SocketAddress(SERVER, 80)) not in server.associations


@given(st.binary(max_size=64), st.booleans())
def test_noise_is_decoded_or_refused(noise: bytes, whole: bool) -> None:  # noqa: FBT001 - hypothesis passes it
    if whole and len(noise) >= 12:  # past the checksum, into the chunks
        noise = noise[:8] + crc32c(noise[:8] + bytes(4) + noise[12:]).to_bytes(4, "little") + noise[12:]
    with contextlib.suppress(DecodeError):
        assert Packet.decode(noise).source == int.from_bytes(noise[:2])
        responder(80).receive(noise, CLIENT, SERVER)


@given(st.integers(0, 65535), st.integers(0, 65535), st.integers(0, 2**32 - 1), st.lists(st.binary(max_size=30)))
def test_a_packet_is_read_as_it_was_written(source: int, destination: int, tag: int, values: list[bytes]) -> None:
    packet = Packet(source, destination, tag, tuple(Chunk(kind, value) for kind, value in enumerate(values)))
    assert Packet.decode(packet.encode()) == packet
