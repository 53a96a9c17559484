"""The cluster's certificate authority: its key, the server's certificate, and certificates for users.

Keys are ECDSA on P-256, and only the owner can read the files. A certificate is replaced if it lacks an address, two
thirds of its validity are over, it is not valid yet (the clock was ahead when it was made), or it has been revoked.
Certificates of the server and of machines, which vipwire renews, expire after LIFE by default; those of users, whose
kubeconfigs people copy, after a year.

A key is written before its certificate and survives renewals; only a revoked certificate gets another key. So after
an interruption the next start finds a key and makes the missing certificate. A certificate that does not match the
key beside it counts as missing. The authority never changes its key: certificates that it signed, and valid copies of
its own, stay valid when its own is renewed.
"""

import contextlib
import datetime as dt
import ipaddress
import ssl
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vipwire.errors import ConfigError
from vipwire.file_io.private_files import write_private
from vipwire.logging import log

_YEARS_OF_AUTHORITY: Final = dt.timedelta(days=3650)
_YEAR: Final = dt.timedelta(days=365)
LIFE: Final = dt.timedelta(days=30)
_BACKDATE: Final = dt.timedelta(hours=24)  # for clients whose clocks are behind
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate with its key, in two files."""

    certificate: Path
    key: Path


def is_renewal_due(certificate: x509.Certificate, now: dt.datetime) -> bool:
    """Report whether two thirds of a certificate's validity are over, or it is not valid yet."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return not begin <= now < begin + (end - begin) * 2 / 3


class Authority:
    """The authority of a folder, created if missing. Raise ConfigError for unusable files.

    `life` is the validity of certificates of servers and machines.
    """

    def __init__(
        self, folder: Path, now: dt.datetime, revoked: Collection[int] = (), life: dt.timedelta = LIFE
    ) -> None:
        self._folder, self._now, self._revoked, self._life = folder, now, revoked, life
        self.pair = CertificatePair(folder / "ca.crt", folder / "ca.key")
        with _explain_errors(self.pair.key):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.pair.key.exists():
                self._check_new()
                write_key(self.pair.key)
            self._key = load_key(self.pair.key)
            self._certificate = self._load_or_sign()

    @property
    def text(self) -> str:
        """The authority's certificate in PEM form, without other content of its file."""
        return self._certificate.public_bytes(_PEM).decode()

    def _check_new(self) -> None:
        """Raise ConfigError if a certificate exists without its key: the authority's key is lost."""
        for left in sorted(self._folder.glob("*.crt")):
            raise ConfigError(
                f"{self.pair.key}: is missing, but {left.name} is there: put the key back, from a backup or from "
                f"another API server of the cluster; or, for a new authority, which no machine and no kubeconfig "
                f"trusts yet, move {self._folder} away"
            )
        if (self._folder.parent / "tokens.csv").exists():
            log.warning(
                "created a new certificate authority, which no machine and no kubeconfig trusts yet",
                file=self.pair.key,
            )

    def _load_or_sign(self) -> x509.Certificate:
        """Return the authority's certificate; sign a new one if it is missing or expires soon."""
        if self.pair.certificate.exists():
            found = _load_certificate(self.pair)
            if not _is_certificate_of_key(found, self._key):
                remedy = (
                    f"restore the right certificate, or delete {self.pair.certificate}: vipwire then "
                    "creates one for the key"
                )
                raise ConfigError(f"{self.pair.certificate}: does not match the key beside it: {remedy}")
            if self._is_valid(found, _YEAR):
                return found
            log.warning(
                "the authority's certificate is not valid now: signing it again with the same key; renew copies of "
                "the certificate and of kubeconfigs",
                from_time=found.not_valid_before_utc.isoformat(),
                to_time=found.not_valid_after_utc.isoformat(),
            )
        made = self._self_signed_certificate()
        write_private(self.pair.certificate, made.public_bytes(_PEM))
        return made

    def _is_valid(self, certificate: x509.Certificate, for_long: dt.timedelta) -> bool:
        begun = certificate.not_valid_before_utc <= self._now
        return begun and certificate.not_valid_after_utc > self._now + for_long

    def issue_server_certificate(self, names: Iterable[str]) -> CertificatePair:
        wanted = sorted(set(names))
        alternative = x509.SubjectAlternativeName([_build_general_name(name) for name in wanted])
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        return self._load_or_issue("server", _build_subject("vipwire-apiserver", ()), alternative, usage, self._life)

    def issue_client_certificate(self, file: str, user: str, groups: tuple[str, ...]) -> CertificatePair:
        """Return the certificate of a user: the name is its common name, the groups its organizations."""
        return self._load_or_issue(file, _build_subject(user, groups), None, ExtendedKeyUsageOID.CLIENT_AUTH, _YEAR)

    def sign_client_key(self, key: CertificatePublicKeyTypes, user: str, groups: tuple[str, ...]) -> bytes:
        made = self._sign_certificate(
            key, _build_subject(user, groups), None, ExtendedKeyUsageOID.CLIENT_AUTH, self._life
        )
        return made.public_bytes(_PEM)

    def has_signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def build_server_context(self, pair: CertificatePair) -> ssl.SSLContext:
        """Build the TLS context of a server: clients may present a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(self.pair.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _self_signed_certificate(self) -> x509.Certificate:
        key = self._key
        subject = _build_subject("vipwire-ca", ())
        builder = self._certificate_builder(subject, subject, key.public_key(), _YEARS_OF_AUTHORITY)
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
        return builder.sign(key, hashes.SHA256())

    def _load_or_issue(
        self,
        file: str,
        subject: x509.Name,
        alternative: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
        life: dt.timedelta,
    ) -> CertificatePair:
        pair = CertificatePair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        found = _read_certificate(pair)
        if found is not None and self._is_reusable(found, subject, alternative):
            return pair
        try:
            if found is None or found.serial_number in self._revoked:
                write_key(pair.key)
            made = self._sign_certificate(load_key(pair.key).public_key(), subject, alternative, usage, life)
            write_private(pair.certificate, made.public_bytes(_PEM))
        except OSError as error:
            usable = found is not None and found.serial_number not in self._revoked
            if found is None or not usable or not self._is_valid(found, dt.timedelta()):
                raise ConfigError(f"{pair.certificate}: cannot be written: {error.strerror}") from error
            log.error("cannot renew a certificate; using the old one", file=pair.certificate, reason=error.strerror)
        return pair

    def _sign_certificate(
        self,
        key: CertificatePublicKeyTypes,
        subject: x509.Name,
        alternative: x509.SubjectAlternativeName | None,
        usage: x509.ObjectIdentifier,
        life: dt.timedelta,
    ) -> x509.Certificate:
        builder = self._certificate_builder(subject, self._certificate.subject, key, life)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if alternative is not None:
            builder = builder.add_extension(alternative, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _certificate_builder(
        self, subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, life: dt.timedelta
    ) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(self._now - min(_BACKDATE, life / 10)).not_valid_after(self._now + life)

    def _is_reusable(
        self, certificate: x509.Certificate, subject: x509.Name, alternative: x509.SubjectAlternativeName | None
    ) -> bool:
        if not self.has_signed(certificate):
            return False
        try:
            names = set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except x509.ExtensionNotFound:
            names = set()
        covers = alternative is None or names >= set(alternative)
        ours = certificate.subject == subject and certificate.serial_number not in self._revoked
        return ours and covers and not is_renewal_due(certificate, self._now)


def _build_subject(user: str, groups: tuple[str, ...]) -> x509.Name:
    organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _build_general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return x509.DNSName(name)
    except ValueError as error:
        raise ConfigError(f"--tls-san {name!r}: not a name that a certificate can have: {error}") from error


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: {error.strerror}") from error


def _load_certificate(pair: CertificatePair) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    except ValueError as error:
        raise ConfigError(f"{pair.certificate}: not a certificate: {error}") from error


def load_key(path: Path, remedy: str = "") -> ec.EllipticCurvePrivateKey:
    """Read a private key. Raise ConfigError, with the remedy, if the file holds no key of an elliptic curve."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: not a key{remedy}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path}: not an elliptic curve's key{remedy}")
    return key


def encode_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def write_key(path: Path) -> None:
    """Write a new private key."""
    write_private(path, encode_key(ec.generate_private_key(ec.SECP256R1())))


def encode_public_key(key: CertificatePublicKeyTypes) -> bytes:
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _read_certificate(pair: CertificatePair) -> x509.Certificate | None:
    try:
        certificate, key = _load_certificate(pair), load_key(pair.key)
    except (OSError, ConfigError):
        return None
    return certificate if _is_certificate_of_key(certificate, key) else None


def _is_certificate_of_key(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    return encode_public_key(certificate.public_key()) == encode_public_key(key.public_key())
