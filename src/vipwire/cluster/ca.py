"""The cluster's own certificate authority: its key, the server's certificate, and certificates for users.

Keys are ECDSA on P-256, files are readable by their owner only, and nothing that is still good is made anew: who has
been given a certificate keeps it. The server's certificate is made again when an address is missing in it, or its end
is near; its clients trust the authority, so that they need not be told.
"""

import datetime as dt
import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vipwire.errors import ConfigError

_YEARS_OF_AUTHORITY: Final = dt.timedelta(days=3650)
_YEAR: Final = dt.timedelta(days=365)
_NEAR: Final = dt.timedelta(days=30)
_BACKDATE: Final = dt.timedelta(minutes=5)  # for clients whose clocks are behind


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate with its key, in two files."""

    certificate: Path
    key: Path


class Authority:
    """The authority of a folder, made if there is none. Raise ConfigError for files that cannot be used."""

    def __init__(self, folder: Path, now: dt.datetime) -> None:
        self._folder, self._now = folder, now
        self.pair = Pair(folder / "ca.crt", folder / "ca.key")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.pair.key.exists():
                self._found()
            self._certificate, self._key = _load(self.pair)
        except OSError as error:
            raise ConfigError(f"{error.filename}: {error.strerror}") from error

    def server(self, names: Iterable[str]) -> Pair:
        """Give the server's certificate, good for names and addresses."""
        wanted = sorted(set(names))
        alternative = x509.SubjectAlternativeName([_general(name) for name in wanted])
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return self._issue("server", _subject("vipwire-apiserver", ()), alternative, usage)

    def client(self, file: str, user: str, groups: tuple[str, ...]) -> Pair:
        """Give the certificate of a user: the name is its common name, the groups its organizations."""
        return self._issue(file, _subject(user, groups), None, ExtendedKeyUsageOID.CLIENT_AUTH)

    def server_context(self, pair: Pair) -> ssl.SSLContext:
        """Make the server's side of TLS: clients may show a certificate of this authority, or none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(self.pair.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _found(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject("vipwire-ca", ())
        builder = self._builder(subject, subject, key.public_key(), _YEARS_OF_AUTHORITY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
        _write(self.pair, builder.sign(key, hashes.SHA256()), key)

    def _issue(
        self,
        file: str,
        subject: x509.Name,
        alternative: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
    ) -> Pair:
        pair = Pair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        if self._is_good(pair, subject, alternative):
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(subject, self._certificate.subject, key.public_key(), _YEAR)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if alternative is not None:
            builder = builder.add_extension(alternative, critical=False)
        _write(pair, builder.sign(self._key, hashes.SHA256()), key)
        return pair

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - _BACKDATE).not_valid_after(self._now + life)

    def _is_good(self, pair: Pair, subject: x509.Name, alternative: x509.SubjectAlternativeName | None) -> bool:
        if not (pair.certificate.exists() and pair.key.exists()):
            return False
        certificate, _ = _load(pair)
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        try:
            names = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            names = set()
        covers = alternative is None or names >= set(alternative)
        return certificate.subject == subject and covers and certificate.not_valid_after_utc > self._now + _NEAR


def _subject(user: str, groups: tuple[str, ...]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise ConfigError(f"--tls-san {name!r}: not a name that a certificate can have: {error}") from error


def _load(pair: Pair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{pair.certificate}: not a certificate with a key beside it: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{pair.key}: not an elliptic curve's key")
    return certificate, key


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    plain = serialization.NoEncryption()
    text = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    write_private(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    write_private(pair.key, text)  # last: a key without its certificate is what an interruption must not leave


def write_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone can read, whole or not at all."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
