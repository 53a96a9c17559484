"""A join with somebody on the way: neither the token nor a key gets out, and the join ends in time with one line."""

import contextlib
import gzip
import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fakes.own_network import own_network
from tests.up.kernel.attacked_join import (
    AUTHORITY,
    HOST,
    PEM,
    ROLES,
    Answer,
    Attacker,
    Cluster,
    Pair,
    Request,
    cluster,
    http,
    join,
    load_pair,
    make_authority,
    make_certificate,
    make_leaf,
)
from tests.up.unit.cluster_process import VIPWIRE

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.slow]
LONGEST = 45.0
"""Seconds that three messages may take on a busy machine."""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with own_network(), cluster(tmp_path_factory.mktemp("up")) as found:
        yield found


def told(certificate: Any) -> bytes:
    """Answer which authority the cluster has."""
    return http(json.dumps({"certificate": certificate}).encode())


def own_line(done: "subprocess.CompletedProcess[str]") -> str:
    """Give the one line with which a command has failed."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("ts=")]
    assert (done.returncode, len(lines)) == (1, 1), done.stderr
    assert lines[0].startswith(f"error: https://{HOST}:")
    return lines[0]


def check_untouched(real: Cluster, folder: Path) -> None:
    """Check that a machine trusts the authority that was pinned, or none, and keeps no key of another."""
    trusted, key = folder / "pki/ca.crt", folder / "pki/ca.key"
    assert not trusted.exists() or trusted.read_text() == real.authority
    assert not key.exists() or key.read_text() == (real.folder / "pki/ca.key").read_text()
    assert not (folder / "member.json").exists()


def foreign(real: Cluster) -> str:
    """Write a certificate with the key of the real authority, which its own key has not signed."""
    key, other = load_pair(real.folder, "ca").certificate.public_key(), make_authority()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    made = make_certificate("vipwire-ca", key, "vipwire-ca", other.key, is_authority=True)
    return made.public_bytes(PEM).decode()


GARBAGE = "-----BEGIN CERTIFICATE-----\nMIIBAAAA////\n-----END CERTIFICATE-----\n"
FIRST: dict[str, Callable[[Cluster, Pair], Any]] = {
    "the real one, then the attacker's": lambda real, evil: real.authority + evil.text,
    "the attacker's, then the real one": lambda real, evil: evil.text + real.authority,
    "the attacker's alone": lambda _, evil: evil.text,
    "garbage between the two": lambda real, evil: real.authority + GARBAGE + evil.text,
    "garbage behind the real one": lambda real, _: real.authority + GARBAGE,
    "two of them on one line": lambda real, evil: real.authority.strip() + evil.text,
    "text before the real one": lambda real, _: f"trust me\n{real.authority}",
    "a trusted certificate behind": lambda real, evil: (
        real.authority + evil.text.replace("CERTIFICATE", "TRUSTED CERTIFICATE")
    ),
    "a key behind": lambda real, evil: real.authority + evil.key_text,
    "the server's in place of the authority's": lambda real, _: (real.folder / "pki/server.crt").read_text(),
    "a chain": lambda real, _: (real.folder / "pki/server.crt").read_text() + real.authority,
    "one with the real key that another has signed": lambda real, _: foreign(real),
    "a list": lambda real, evil: [real.authority, evil.text],
    "the real one, and TLS of another authority": lambda real, _: real.authority,
}


@pytest.mark.parametrize("case", FIRST)
def test_what_the_first_answer_says_gives_nothing_away(real: Cluster, tmp_path: Path, case: str) -> None:
    """The attacker answers all messages, and has no key of the cluster. Each other case is a server's to be."""
    role = ROLES[[*FIRST].index(case) % 2]
    evil = make_authority()
    context = make_leaf(evil).context(tmp_path)

    def answer(request: Request) -> bytes:
        if request.path == AUTHORITY:
            return told(FIRST[case](real, evil))
        return http(json.dumps({"certificate": evil.text, "key": evil.key_text, "authority": evil.text}).encode())

    token, pinned = real.tokens[role]
    with Attacker(lambda here, opened, _: here.end_tls(opened, context, answer)) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim", *role))
    assert token.encode() not in attacker.seen
    assert b"authorization" not in attacker.seen.lower()
    check_untouched(real, tmp_path / "victim")


@pytest.mark.parametrize("name", ["view", "a machine's"])
def test_a_certificate_of_a_client_is_none_of_a_server(real: Cluster, tmp_path: Path, name: str) -> None:
    """The authority has signed it, but for a client: that of a machine, say, which somebody has taken over."""
    token, pinned = real.tokens[()]
    pair = load_pair(real.folder, "view")
    if name != "view":
        with joined(real.port, token, pinned, tmp_path / "first"):
            pair = load_pair(tmp_path / "first", "node")
    context = pair.context(tmp_path)
    with Attacker(lambda here, to, _: here.end_tls(to, context, lambda _: told(real.authority))) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim"))
    assert token.encode() not in attacker.seen
    check_untouched(real, tmp_path / "victim")


def liar(real: Cluster, folder: Path, change: Callable[[int, Request, dict[str, Any]], Any]) -> Attacker:
    """Answer by the server's own key, as somebody who has taken all keys: each answer is right, and then changed."""
    context, authority = load_pair(real.folder, "server").context(folder), load_pair(real.folder, "ca")

    def answer(request: Request) -> dict[str, Any]:
        if request.method == "POST":
            return {"certificate": signed(authority, request), "authority": authority.text}
        return {"certificate": authority.text} | ({"key": authority.key_text} if request.path != AUTHORITY else {})

    def serve(here: Attacker, opened: socket.socket, number: int) -> None:
        here.end_tls(
            opened, context, lambda request: http(json.dumps(change(number, request, answer(request))).encode())
        )

    return Attacker(serve)


Change = Callable[[Cluster, Pair, Request, dict[str, Any]], Any]


def signed(by: Pair, request: Request, name: str = "", key: ec.EllipticCurvePublicKey | None = None) -> str:
    """Sign a request, for its own name and key unless others are given."""
    asked = x509.load_pem_x509_csr(json.loads(request.body)["request"].encode())
    issuer, subject = (
        str(each.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        for each in (by.certificate.subject, asked.subject)
    )
    own = asked.public_key()
    assert isinstance(own, ec.EllipticCurvePublicKey)
    return make_certificate(name or subject, key or own, issuer, by.key).public_bytes(PEM).decode()


LATER: dict[str, Change] = {
    "authority: the real one, then the attacker's": lambda real, evil, _, found: (
        found | {"authority": real.authority + evil.text}
    ),
    "authority: the attacker's, then the real one": lambda real, evil, _, found: (
        found | {"authority": evil.text + real.authority}
    ),
    "authority: the attacker's": lambda _real, evil, _, found: found | {"authority": evil.text},
    "authority: another's signature": lambda real, _evil, _, found: found | {"authority": foreign(real)},
    "authority: none": lambda _real, _evil, _, found: {"certificate": found["certificate"]},
    "authority: a number": lambda _real, _evil, _, found: found | {"authority": 7},
    "certificate: two": lambda _real, evil, _, found: found | {"certificate": found["certificate"] + evil.text},
    "certificate: the attacker's first": lambda _real, evil, _, found: (
        found | {"certificate": evil.text + found["certificate"]}
    ),
    "certificate: of another authority": lambda _real, evil, request, found: (
        found | {"certificate": signed(evil, request)}
    ),
    "certificate: for another key": lambda real, evil, request, found: (
        found | {"certificate": signed(load_pair(real.folder, "ca"), request, key=evil.key.public_key())}
    ),
    "certificate: for another name": lambda real, _evil, request, found: (
        found | {"certificate": signed(load_pair(real.folder, "ca"), request, "system:node:other")}
    ),
    "certificate: the authority's": lambda real, _evil, _, found: found | {"certificate": real.authority},
    "certificate: none": lambda _real, _evil, _, found: {"authority": found["authority"]},
    "certificate: garbage": lambda _real, _evil, _, found: found | {"certificate": GARBAGE},
    "an empty object": lambda *_: {},
    "a list": lambda *_: [1, 2],
    "null": lambda *_: None,
}


@pytest.mark.parametrize("case", LATER)
def test_a_machine_stores_what_it_has_compared(real: Cluster, tmp_path: Path, case: str) -> None:
    """The second message is changed, or the third."""
    message = 1 + [*LATER].index(case) % 2
    evil, token, pinned = make_authority(), *real.tokens[()]
    with liar(
        real, tmp_path, lambda number, *said: LATER[case](real, evil, *said) if number == message else said[1]
    ) as (attacker):
        own_line(join(attacker.port, token, pinned, tmp_path / "victim"))
    assert attacker.connections == message + 1
    check_untouched(real, tmp_path / "victim")


def test_a_liar_that_changes_nothing_is_believed(real: Cluster, tmp_path: Path) -> None:
    """Without this test the one above could pass by answers that no machine takes."""
    token, pinned = real.tokens[()]
    with (
        liar(real, tmp_path, lambda _, __, found: found) as attacker,
        joined(attacker.port, token, pinned, tmp_path / "believing"),
    ):
        assert (tmp_path / "believing/pki/ca.crt").read_text() == real.authority
    assert token.encode() in attacker.seen


SERVERS: dict[str, Change] = {
    "certificate: the real one, then the attacker's": lambda real, evil, _, found: (
        found | {"certificate": real.authority + evil.text}
    ),
    "certificate and key: the attacker's": lambda _real, evil, *_: {"certificate": evil.text, "key": evil.key_text},
    "key: another": lambda _real, evil, _, found: found | {"key": evil.key_text},
    "key: none": lambda _real, _evil, _, found: {"certificate": found["certificate"]},
    "key: a public one": lambda real, _evil, _, found: (
        found
        | {
            "key": load_pair(real.folder, "ca")
            .key.public_key()
            .public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
            .decode()
        }
    ),
    "certificate: another's signature": lambda real, _evil, _, found: found | {"certificate": foreign(real)},
    "a list": lambda *_: [1, 2],
}


@pytest.mark.parametrize("case", SERVERS)
def test_a_server_to_be_stores_what_it_has_compared(real: Cluster, tmp_path: Path, case: str) -> None:
    evil, token, pinned = make_authority(), *real.tokens["--server",]
    with liar(
        real, tmp_path, lambda number, *said: SERVERS[case](real, evil, *said) if number else said[1]
    ) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim", "--server"))
    assert attacker.connections == 2
    assert not list((tmp_path / "victim/pki").glob("ca.*"))


@pytest.mark.parametrize("more", ["", "a key"])
def test_a_server_to_be_stores_one_key(real: Cluster, tmp_path: Path, more: str) -> None:
    """A key behind the right one is not stored. The attackers here do read what they are sent."""
    evil, token, pinned = make_authority(), *real.tokens["--server",]

    def change(number: int, _: Request, found: dict[str, Any]) -> Any:
        return found | {"key": found["key"] + evil.key_text} if number and more else found

    with liar(real, tmp_path, change) as attacker:
        assert join(attacker.port, token, pinned, tmp_path / "victim", "--server").returncode == 0
    for name in ("ca.key", "ca.crt"):
        assert (tmp_path / "victim/pki" / name).read_bytes() == (real.folder / "pki" / name).read_bytes()
    assert token.encode() in attacker.seen


DEEP = b'{"certificate":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
ANSWERS: dict[str, Answer] = {
    "a redirect": lambda _: http(b"", "Location: https://127.0.0.1:1/", status="302 Found"),
    "a redirect that keeps the method": lambda _: http(b"", "Location: /", status="307 Temporary Redirect"),
    "a huge answer": lambda _: http(b'{"certificate":"' + b"A" * (32 << 20) + b'"}'),
    "gzip": lambda _: http(gzip.compress(b'{"certificate":"' + b"A" * (256 << 20) + b'"}'), "Content-Encoding: gzip"),
    "broken gzip": lambda _: http(b"no gzip", "Content-Encoding: gzip"),
    "a list": lambda _: http(b"[1,2]"),
    "deep JSON": lambda _: http(DEEP),
    "an empty object": lambda _: http(b"{}"),
    "null": lambda _: http(b"null"),
    "no JSON": lambda _: http(b"<html>"),
    "no UTF-8": lambda _: http(b'{"certificate":"\xff\xfe"}'),
    "half a surrogate": lambda _: http(b'{"certificate":"\\ud800"}'),
    "nothing": lambda _: http(b""),
    "a failure": lambda _: http(b"[]", status="500 Internal Server Error"),
    "a failure of many lines": lambda _: http(b'{"message":"\\u001b[2Ja\\nerror: b\\r\\nc"}', status="403 Forbidden"),
    "a failure with an object": lambda _: http(b'{"message":{"a":[1]},"reason":[]}', status="403 Forbidden"),
    "unauthorized": lambda _: http(b"{}", status="401 Unauthorized"),
    "another protocol": lambda _: http(
        b"", "Connection: Upgrade", "Upgrade: websocket", status="101 Switching Protocols"
    ),
    "no HTTP": lambda _: b"\x00\x01\x02" * 100,
    "a head without an end": lambda _: b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200_000,
    "two lengths": lambda _: http(b"{}", "Content-Length: 4"),
    "a cut": lambda _: None,
    "a cut within": lambda _: http(b'{"certi', length=4000),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_any_first_answer_ends_a_join_with_a_line(real: Cluster, tmp_path: Path, case: str) -> None:
    context = make_leaf(make_authority()).context(tmp_path)
    token, pinned = real.tokens[()]
    with Attacker(lambda here, opened, _: here.end_tls(opened, context, ANSWERS[case])) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim"))
    assert attacker.connections == 1
    assert token.encode() not in attacker.seen


@pytest.mark.parametrize("case", ["a list", "deep JSON", "a huge answer", "gzip", "a redirect", "a cut within"])
def test_any_later_answer_ends_a_join_with_a_line(real: Cluster, tmp_path: Path, case: str) -> None:
    role = ROLES[[*ANSWERS].index(case) % 2]
    context = load_pair(real.folder, "server").context(tmp_path)
    token, pinned = real.tokens[role]

    def answer(request: Request) -> bytes | None:
        return told(real.authority) if request.path == AUTHORITY else ANSWERS[case](request)

    with Attacker(lambda here, opened, _: here.end_tls(opened, context, answer)) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim", *role))
    check_untouched(real, tmp_path / "victim")


def test_plain_http_gets_nothing(real: Cluster, tmp_path: Path) -> None:
    """The attacker speaks HTTP where TLS is; and a URL that begins with http:// is a wrong command line."""

    def serve(here: Attacker, opened: socket.socket, _: int) -> None:
        here.seen += opened.recv(1 << 16)
        opened.sendall(told(real.authority))

    token, pinned = real.tokens[()]
    with Attacker(serve) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim"))
        command = [*VIPWIRE, "join", f"http://{HOST}:{attacker.port}", "--token", token, "--ca-hash", pinned]
        command += ["--no-proxy", "--data-dir", str(tmp_path / "other")]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 2
    assert attacker.connections == 1
    assert token.encode() not in attacker.seen


def drip(request: Request) -> None:
    request.connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        request.connection.sendall(b" ")
        time.sleep(0.2)


def wait(request: Request) -> None:
    request.connection.recv(1)


def silent(_here: Attacker, opened: socket.socket) -> None:
    opened.recv(1 << 16)
    time.sleep(LONGEST)


def test_silence_at_any_message_ends_a_join_in_time(real: Cluster, tmp_path: Path) -> None:
    """Before TLS, before the head, within the body: of each of three messages, the others passed on or answered."""
    context = load_pair(real.folder, "server").context(tmp_path)

    def stalled(number: int, how: Callable[[Request], None] | None) -> Callable[[Attacker, socket.socket, int], None]:
        def answer(request: Request) -> bytes | None:
            return how(request) if how else None

        def serve(here: Attacker, opened: socket.socket, connection: int) -> None:
            if connection != number:
                here.pass_on(opened, real.connect())
            elif how is None:
                silent(here, opened)
            else:
                here.end_tls(opened, context, answer)

        return serve

    def one(serve: Callable[[Attacker, socket.socket, int], None], name: str) -> None:
        token, pinned = real.tokens[()]
        with Attacker(serve) as attacker:
            began = time.monotonic()
            own_line(join(attacker.port, token, pinned, tmp_path / name))
            assert time.monotonic() - began < LONGEST
        check_untouched(real, tmp_path / name)

    cases = [stalled(number, how) for number in range(3) for how in (None, wait, drip)]
    with ThreadPoolExecutor(len(cases)) as pool:
        for done in [pool.submit(one, serve, f"victim-{number}") for number, serve in enumerate(cases)]:
            done.result()


@pytest.mark.parametrize(("number", "pieces"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_a_cut_after_any_piece_ends_a_join_with_a_line(
    real: Cluster, tmp_path: Path, number: int, pieces: int
) -> None:
    """The connection of a message ends after so many pieces of the real server."""
    cut(real, tmp_path, number, pieces, lambda _: None)


@pytest.mark.parametrize(("number", "pieces"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_a_bit_that_is_flipped_ends_a_join_with_a_line(
    real: Cluster, tmp_path: Path, number: int, pieces: int
) -> None:
    cut(real, tmp_path, number, pieces, lambda piece: piece[:-1] + bytes([piece[-1] ^ 1]))


def cut(real: Cluster, folder: Path, number: int, pieces: int, change: Callable[[bytes], bytes | None]) -> None:
    came: list[bytes] = []

    def serve(here: Attacker, opened: socket.socket, connection: int) -> None:
        def changed(piece: bytes, back: bool) -> bytes | None:  # noqa: FBT001
            if connection != number or not back:
                return piece
            came.append(piece)
            return change(piece) if len(came) > pieces else piece

        here.pass_on(opened, real.connect(), changed)

    token, pinned = real.tokens[()]
    with Attacker(serve) as attacker:
        own_line(join(attacker.port, token, pinned, folder / "victim"))
    assert came
    assert token.encode() not in attacker.seen
    check_untouched(real, folder / "victim")


@pytest.mark.parametrize("role", ROLES, ids=["machine", "server"])
def test_replayed_bytes_give_nothing_away(real: Cluster, tmp_path: Path, role: tuple[str, ...]) -> None:
    """The attacker plays the server's bytes of an earlier join again."""
    recorded: dict[int, list[bytes]] = {}

    def record(here: Attacker, opened: socket.socket, connection: int) -> None:
        def kept(piece: bytes, back: bool) -> bytes:  # noqa: FBT001
            if back:
                recorded.setdefault(connection, []).append(piece)
            return piece

        here.pass_on(opened, real.connect(), kept)

    token, pinned = real.tokens[role]
    with Attacker(record) as attacker, joined(attacker.port, token, pinned, tmp_path / "recorded", *role):
        assert recorded.keys() >= {0, 1}

    def replay(here: Attacker, opened: socket.socket, connection: int) -> None:
        if connection == 0:
            here.pass_on(opened, real.connect())
            return
        for piece in recorded[connection]:
            here.seen += opened.recv(1 << 16)
            opened.sendall(piece)

    with Attacker(replay) as attacker:
        own_line(join(attacker.port, token, pinned, tmp_path / "victim", *role))
    assert token.encode() not in attacker.seen
    check_untouched(real, tmp_path / "victim")


@contextlib.contextmanager
def joined(port: int, token: str, pinned: str, folder: Path, *role: str) -> Iterator[None]:
    """Join, and leave the block with the machine ended. One that becomes a server ends by itself."""
    command = [*VIPWIRE, "join", f"https://{HOST}:{port}", "--token", token, "--ca-hash", pinned, "--no-proxy"]
    command += ["--data-dir", str(folder), *(role or ("--node-name", folder.name))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            assert line.startswith(f"{folder}: has" if role else f"joined as Node {folder.name}")
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize("role", ROLES, ids=["machine", "server"])
def test_bytes_that_are_passed_on_join_and_show_nothing(real: Cluster, tmp_path: Path, role: tuple[str, ...]) -> None:
    """Without this test the others could pass by a join that never works."""
    token, pinned = real.tokens[role]
    with (
        Attacker(lambda here, opened, _: here.pass_on(opened, real.connect())) as attacker,
        joined(attacker.port, token, pinned, tmp_path / "passed", *role),
    ):
        assert (tmp_path / "passed/pki/ca.crt").read_text() == real.authority
    assert attacker.seen
    assert token.encode() not in attacker.seen
