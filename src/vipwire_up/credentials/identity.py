"""Authenticates clients: by client certificates of the authority, and by bearer tokens from a file.

The file of tokens has Kubernetes' form (--token-auth-file): `token,user,uid,"group1,group2"`, a line each. vipwire
writes it once, with a token for each role, and reads it again when it changes (keys.py).
"""

import base64
import csv
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from vipwire.errors import ConfigError
from vipwire.file_io.private_files import update_private, write_private
from vipwire.http_server.exchange import Exchange
from vipwire.kube.errors import ApiError
from vipwire.logging import log
from vipwire_up.api.serving.authorization import ANONYMOUS, Role, User
from vipwire_up.credentials.ca import Authority
from vipwire_up.credentials.machine_records import INGRESS_USER
from vipwire_up.credentials.revocation import NOBODY, Revoked

_AUTHENTICATED: Final = "system:authenticated"
FindUser: TypeAlias = Callable[[str], User | None]


@dataclass(frozen=True, slots=True)
class Identity:
    """A user that the cluster makes credentials for; `file` names them."""

    file: str
    user: str
    role: Role


IDENTITIES: Final = (
    Identity("admin", "kubernetes-admin", Role.ADMIN),
    Identity("node", "system:kube-proxy", Role.NODE),
    Identity("view", "viewer", Role.VIEW),
    Identity("ingress", "vipwire-ingress", Role.INGRESS),
)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Credentials that the cluster has withdrawn: tokens by their digests, certificates, users.

    `ready` are the Ready Nodes: a certificate for ingress:NAME is accepted only while NAME is one of them.
    """

    tokens: frozenset[bytes] = frozenset()
    others: Revoked = NOBODY
    ready: frozenset[str] = frozenset()


class Access:
    """Authenticates requests. Tokens are kept as hashes, so that a comparison's time tells nothing about them.

    Tokens and `revoked` may change at any time, also those of other API servers (shared.py); the next request is
    checked against the new state.
    """

    def __init__(self, tokens: Mapping[str, User], revoked: Revoked = NOBODY) -> None:
        self.set_own_tokens(tokens)
        self.revoked = revoked
        self._others: Mapping[bytes, User] = {}
        self.withdrawn = Withdrawn()

    def set_own_tokens(self, tokens: Mapping[str, User]) -> None:
        self.own = {_digest_token(token): user for token, user in tokens.items()}

    def set_shared_credentials(self, tokens: Mapping[bytes, User], withdrawn: Withdrawn) -> bool:
        """Set the tokens and withdrawals of all servers; report whether they changed."""
        before = self._others, self.withdrawn
        self._others, self.withdrawn = tokens, withdrawn
        return before != (tokens, withdrawn)

    def identify(self, request: Exchange, find_bootstrap_user: FindUser | None = None) -> User:
        """Return the user: by token, by certificate, or anonymous. Raise ApiError 401 for invalid credentials.

        `find_bootstrap_user` returns the user of a bootstrap token.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            user = self.user_of(token.strip(), find_bootstrap_user) if scheme.lower() == "bearer" else None
            if user is None or self._is_refused(user.name):
                raise ApiError(401, "Unauthorized", "Unauthorized")
            return user
        return self._read_certificate_user(request.certificate) if request.certificate else ANONYMOUS

    def user_of(self, token: str, find_bootstrap_user: FindUser | None = None) -> User | None:
        digest = _digest_token(token)
        if digest in self.withdrawn.tokens:
            return None
        found = self.own.get(digest) or self._others.get(digest)
        return found or (find_bootstrap_user(token) if find_bootstrap_user is not None else None)

    def _is_refused(self, name: str, serial: int = 0) -> bool:
        lists = self.revoked, self.withdrawn.others
        return any(name in each.users or serial in each.serials for each in lists)

    def _read_certificate_user(self, certificate: Mapping[str, Any]) -> User:
        parts = [pair for part in certificate.get("subject", ()) for pair in part]
        name = next((value for key, value in parts if key == "commonName"), "")
        serial = int(certificate.get("serialNumber") or "0", 16)
        if self._is_refused(name, serial):
            raise ApiError(401, "Unauthorized", "Unauthorized")
        if name.startswith(INGRESS_USER) and (node := name.removeprefix(INGRESS_USER)) not in self.withdrawn.ready:
            raise ApiError(401, "Unauthorized", f"Unauthorized: Node {node} is not Ready")
        groups = tuple(value for key, value in parts if key == "organizationName")
        return User(name, (*groups, _AUTHENTICATED), serial) if name else ANONYMOUS


def load_tokens(path: Path) -> dict[str, User]:
    """Read the file of tokens; create it if missing. Raise ConfigError that names the line.

    If the file cannot be written, there are no tokens.
    """
    try:
        if not path.exists():
            rows = (f'{secrets.token_urlsafe(32)},{i.user},{i.file},"{i.role.value}"\n' for i in IDENTITIES)
            write_private(path, "".join(rows).encode())
    except OSError as error:
        log.error("cannot write tokens; clients cannot authenticate by token", file=path, reason=error.strerror)
        return {}
    try:
        return parse_tokens(path, path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def parse_tokens(path: Path, content: bytes) -> dict[str, User]:
    users: dict[str, User] = {}
    try:
        lines = content.decode().splitlines()
        for number, row in enumerate(csv.reader(lines, skipinitialspace=True), 1):
            if not row or row[0].startswith("#"):
                continue
            if len(row) not in (3, 4) or not row[0] or not row[1]:
                raise ConfigError(f'{path}: line {number}: expected token,user,uid,"group1,group2"')
            groups = tuple(filter(None, row[3].split(","))) if len(row) == 4 else ()
            users[row[0]] = User(row[1], (*groups, _AUTHENTICATED))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return users


def write_kubeconfigs(folder: Path, authority: Authority, url: str) -> Path:
    """Write a kubeconfig for each role, with a client certificate of its own; return the admin's path.

    If a kubeconfig cannot be written, such as on a full disk, vipwire logs that and continues.
    """
    cluster = {"server": url, "certificate-authority-data": _encode_base64(authority.text.encode())}
    for identity in IDENTITIES:
        path = folder / f"{identity.file}.kubeconfig"
        try:
            pair = authority.issue_client_certificate(identity.file, identity.user, (identity.role.value,))
            certificate, key = _encode_base64(pair.certificate.read_bytes()), _encode_base64(pair.key.read_bytes())
            credentials = {"client-certificate-data": certificate, "client-key-data": key}
            update_private(path, build_kubeconfig(cluster, identity.user, credentials))
        except (ConfigError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            log.error("cannot write a kubeconfig; keeping the old one", file=path, reason=reason)
    return folder / "admin.kubeconfig"


def build_kubeconfig(cluster: Mapping[str, str], name: str, credentials: Mapping[str, str]) -> bytes:
    """Build a kubeconfig of one cluster, with its URL and authority, and one user of that name."""
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "vipwire", "cluster": dict(cluster)}],
        "users": [{"name": name, "user": dict(credentials)}],
        "contexts": [{"name": "vipwire", "context": {"cluster": "vipwire", "user": name}}],
        "current-context": "vipwire",
    }
    return yaml.safe_dump(found, sort_keys=False).encode()


def _encode_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _digest_token(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
