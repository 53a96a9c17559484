"""`vipwire up`, and an attacker between it and the joining machine, in the test thread's network namespace.

The attacker terminates TLS with its own certificate, reads the victim's data, and answers as a test says; or it
forwards connections. `Attacker.seen` is everything that it could read.
"""

import contextlib
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.fakes.forked import run_here
from tests.up.unit.cluster_process import up

PEM = serialization.Encoding.PEM
HOST = "127.0.0.1"
ROLES = ((), ("--server",))
AUTHORITY = "/vipwire.io/v1/authority"
Answer = Callable[["Request"], bytes | None]
"""Returns an answer's bytes; None closes the connection."""


@dataclass(frozen=True)
class Request:
    """The victim's request and connection."""

    method: str
    path: str
    head: str
    body: bytes
    connection: ssl.SSLSocket


@dataclass(frozen=True)
class Cluster:
    folder: Path
    port: int
    tokens: Mapping[tuple[str, ...], tuple[str, str]]
    """A token and the CA's hash, by flags of `vipwire join`."""

    @property
    def authority(self) -> str:
        return (self.folder / "pki/ca.crt").read_text()

    def connect(self) -> socket.socket:
        return socket.create_connection((HOST, self.port))


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    with up(folder):
        found = re.search(r"server: https://127\.0\.0\.1:(\d+)", (folder / "admin.kubeconfig").read_text())
        assert found
        yield Cluster(folder, int(found[1]), {flags: create_token(folder, *flags) for flags in ROLES})


def create_token(folder: Path, *flags: str) -> tuple[str, str]:
    """Make a token; return it with the CA's hash."""
    done = run_here(["token", "create", "--data-dir", str(folder), *flags], timeout=60)
    found = re.search(r"--token (\S+) --ca-hash (\S+)", done.stdout)
    assert found, done
    return found[1], found[2]


@dataclass(frozen=True)
class Pair:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def text(self) -> str:
        return self.certificate.public_bytes(PEM).decode()

    @property
    def key_text(self) -> str:
        plain = serialization.NoEncryption()
        return self.key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, plain).decode()

    def context(self, folder: Path) -> ssl.SSLContext:
        """Make a server's TLS context with it."""
        file = folder / f"{id(self)}.pem"
        file.write_text(self.text + self.key_text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context


def load_pair(folder: Path, name: str) -> Pair:
    key = serialization.load_pem_private_key((folder / f"pki/{name}.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return Pair(x509.load_pem_x509_certificate((folder / f"pki/{name}.crt").read_bytes()), key)


def make_certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool = False,
) -> x509.Certificate:
    now = datetime.now(UTC)  # noqa: TID251  # as the clock of the programs that are tested
    ours, theirs = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer))
    builder = x509.CertificateBuilder().subject_name(ours).issuer_name(theirs).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=2)).not_valid_after(now + timedelta(days=9))
    builder = builder.add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    if not is_authority:
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))])
        builder = builder.add_extension(here, critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(by, hashes.SHA256())


def make_authority(name: str = "vipwire-ca") -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    return Pair(make_certificate(name, key.public_key(), name, key, is_authority=True), key)


def make_leaf(authority: Pair, name: str = "vipwire-apiserver") -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return Pair(make_certificate(name, key.public_key(), str(issuer), authority.key), key)


class Attacker:
    """Listens on its own port. `serve` handles one connection, given its number from 0."""

    def __init__(self, serve: Callable[["Attacker", socket.socket, int], None]) -> None:
        self._serve, self.seen = serve, bytearray()
        self._listening = socket.create_server((HOST, 0))
        self.port: int = self._listening.getsockname()[1]
        self.connections = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listening, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def keep(self, opened: socket.socket) -> None:
        self._open.append(opened)

    def _run(self) -> None:
        while True:
            try:
                opened, _ = self._listening.accept()
            except OSError:
                return
            self.keep(opened)
            number, self.connections = self.connections, self.connections + 1
            threading.Thread(target=self._one, args=(opened, number), daemon=True).start()

    def _one(self, opened: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError, ValueError), opened:
            self._serve(self, opened, number)

    def end_tls(self, opened: socket.socket, context: ssl.SSLContext, answer: Answer) -> None:
        """Read one request over the attacker's own TLS, and answer it."""
        with context.wrap_socket(opened, server_side=True) as connection:
            self.keep(connection)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = connection.recv(1 << 16)
                self.seen += piece
                if not piece:
                    return
                head += piece
            head, _, body = head.partition(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: (\d+)", head)
            while len(body) < int(found[1] if found else 0):
                piece = connection.recv(1 << 16)
                self.seen += piece
                body += piece
            method, path, _ = head.decode().split(" ", 2)
            reply = answer(Request(method, path, f"{head.decode()}\r\n", body, connection))
            if reply is not None:
                connection.sendall(reply)

    def pass_on(
        self, opened: socket.socket, to: socket.socket, change: Callable[[bytes, bool], bytes | None] | None = None
    ) -> None:
        """Forward bytes in both directions.

        `change` gets each piece and whether it is the server's; None closes both.
        """
        self.keep(to)

        def copy(source: socket.socket, target: socket.socket, *, back: bool) -> None:
            with contextlib.suppress(OSError):
                while piece := source.recv(1 << 16):
                    self.seen += piece
                    changed = change(piece, back) if change else piece
                    if changed is None:
                        break
                    target.sendall(changed)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        there = threading.Thread(target=copy, args=(opened, to), kwargs={"back": False}, daemon=True)
        there.start()
        copy(to, opened, back=True)
        there.join()


def http(body: bytes, *more: str, status: str = "200 OK", length: int | None = None) -> bytes:
    fields = (f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *more)
    return "".join(f"{line}\r\n" for line in (*fields, "")).encode() + body


def join(port: int, token: str, pinned: str, folder: Path, *more: str) -> "subprocess.CompletedProcess[str]":
    """Run `vipwire join` to its end, which must come."""
    command = ["join", f"https://{HOST}:{port}", "--token", token, "--ca-hash", pinned]
    name = () if "--server" in more else ("--node-name", "victim")
    return run_here([*command, "--data-dir", str(folder), "--no-proxy", *name, *more], timeout=60)
