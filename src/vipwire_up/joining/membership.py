"""A machine's membership of a cluster in its data directory: the cluster, the Node's name, the credentials.

    DIR/pki/ca.crt              the cluster's authority
    DIR/pki/node.key,.crt       the machine's own key, which never leaves it, and its certificate for system:node:NAME
    DIR/pki/ingress.key,.crt    the same for ingress:NAME, which has the role ingress
    DIR/member.json             the Node's name and the known API servers
    DIR/node.kubeconfig         a kubeconfig of the machine, for its proxy, for DNS and for commands
    DIR/ingress.kubeconfig      another one, for an Ingress or Gateway controller on this machine

Each file is complete or missing, so that an interrupted `vipwire join` can be run again.
"""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from vipwire.config.yaml_values import load_yaml
from vipwire.errors import ConfigError, DecodeError
from vipwire.file_io.private_files import make_folder, update_private
from vipwire.kube.access.access import Access
from vipwire.kube.access.credentials import Credential, Fixed
from vipwire.kube.access.tls import AuthorityFile, ClientFiles, Tls
from vipwire_up.credentials.ca import load_key, write_key
from vipwire_up.credentials.identity import build_kubeconfig
from vipwire_up.credentials.machine_records import INGRESS_USER, NODE_USER
from vipwire_up.joining.pinned import encode_certificate, hash_of, hash_of_key, read_certificate

_PORT: Final = 6443
_REMEDY: Final = ": delete the file, and vipwire creates a new key"
_MOST_NAME: Final = 52
"""Characters of a Node's name: with `system:node:` before it, a certificate's common name has 64."""


@dataclass(frozen=True, slots=True)
class Member:
    """A machine's identity: its Node's name, and the URLs of the API servers that it knows."""

    node: str
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One of a machine's two users: the prefix of its name, and its files."""

    user: str
    key: Path
    certificate: Path
    kubeconfig: Path

    @property
    def files(self) -> tuple[Path, Path, Path]:
        return self.kubeconfig, self.certificate, self.key


class Folder:
    """The data directory of a machine that joined."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.authority, self.authority_key = path / "pki/ca.crt", path / "pki/ca.key"
        self.node, self.ingress = (
            Part(user, path / f"pki/{name}.key", path / f"pki/{name}.crt", path / f"{name}.kubeconfig")
            for name, user in (("node", NODE_USER), ("ingress", INGRESS_USER))
        )
        self.parts = (self.node, self.ingress)
        self._member = path / "member.json"

    def prepare(self, pinned: str) -> None:
        """Create the folders. Raise ConfigError, also if the folder has the key of another cluster's authority."""
        make_folder(self.path, "--data-dir")
        try:
            self.authority.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--data-dir {self.path}: {error.strerror}") from error
        if self.authority_key.exists() and hash_of_key(load_key(self.authority_key, _REMEDY).public_key()) != pinned:
            raise ConfigError(f"{self.authority_key}: belongs to another cluster: choose another --data-dir")

    def authority_hash(self) -> str:
        """Return the hash of the authority that this machine trusts. Raise ConfigError if there is more than one."""
        try:
            return hash_of(read_certificate(self.authority.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            why = "cannot be used; leave the cluster (vipwire leave --force) and join again"
            raise ConfigError(f"{self.authority}: {why}: {error}") from error

    def read_member(self) -> Member | None:
        """Read this machine's identity; None before it has joined. Raise ConfigError for a broken file."""
        try:
            return msgspec.json.decode(self._member.read_bytes(), type=Member)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._member}: cannot be read: {error}") from error

    def save_member(self, member: Member) -> None:
        update_private(self._member, msgspec.json.encode(member))

    def build_signing_request(self, part: Part, node: str) -> x509.CertificateSigningRequest:
        """Return a certificate signing request with the machine's key, which is created if missing."""
        if not part.key.exists():
            write_key(part.key)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{part.user}{node}")])
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
        return builder.sign(load_key(part.key, _REMEDY), hashes.SHA256())

    def save_certificates(self, part: Part, certificate: x509.Certificate, authority: x509.Certificate) -> None:
        update_private(self.authority, encode_certificate(authority).encode())
        update_private(part.certificate, encode_certificate(certificate).encode())

    def read_certificates(self) -> list[str]:
        found = (each.certificate for each in self.parts)
        return [path.read_text(encoding="ascii") for path in found if path.is_file()]

    def access_to(self, server: str) -> Access:
        """Return access to an API server as this machine; the files are read again when they change."""
        files = ClientFiles(self.node.certificate, self.node.key, str(self.path))
        authority = AuthorityFile(self.authority, str(self.authority))
        return Access(server, Fixed(), Tls(authority, authority_field=str(self.authority)), None, files)

    def write_kubeconfigs(self, server: str) -> None:
        """Write a kubeconfig for each existing certificate, with the server's URL. Raise OSError."""
        cluster = {"server": server, "certificate-authority": str(self.authority)}
        for part in self.parts:
            if part.certificate.is_file():
                files = {"client-certificate": str(part.certificate), "client-key": str(part.key)}
                update_private(part.kubeconfig, build_kubeconfig(cluster, "node", files))

    def relay_port(self) -> int:
        try:
            found = load_yaml(self.node.kubeconfig.read_bytes())
            return urlsplit(str(found["clusters"][0]["cluster"]["server"])).port or 0
        except (OSError, LookupError, TypeError, ValueError, DecodeError):
            return 0

    def delete_files(self) -> None:
        """Delete all files: this machine is in no cluster any more."""
        for path in (self._member, *self.node.files, *self.ingress.files, self.authority):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # the folder has other files
            self.authority.parent.rmdir()


def access_by_token(server: str, token: str, authority: x509.Certificate) -> Access:
    """Return access with a bootstrap token, which is sent only after TLS has verified the server."""
    tls = Tls(encode_certificate(authority), authority_field="--ca-hash")
    return Access(server, Fixed(Credential(f"Bearer {token}")), tls)


def unverified_access(server: str) -> Access:
    """Return anonymous access without TLS verification: the caller compares the answer with a hash."""
    return Access(server, Fixed(), Tls(None, verify=False))


def read_server(text: str) -> str:
    """Parse the URL of an API server; the port is 6443 unless given. Raise ConfigError."""
    full = text.rstrip("/") if "://" in text else f"https://{text}".rstrip("/")
    try:
        parts = urlsplit(full)
        port, host = parts.port or _PORT, parts.hostname or ""
    except ValueError:
        port, host = 0, ""
    if not port or not host or parts.scheme != "https" or parts.path:
        raise ConfigError(f"{text!r} is not the URL of an API server (allowed: https://HOST:PORT)")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def check_node(name: str) -> str:
    if not name or len(name) > _MOST_NAME:
        raise ConfigError(f"--node-name {name!r}: must have 1 to {_MOST_NAME} characters")
    return name


def merge_servers(known: Iterable[str], found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*found, *known)))
