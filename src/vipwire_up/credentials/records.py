"""Secrets in kube-system through which the API servers of a cluster share their tokens.

    vipwire-server-NODE     type vipwire.io/server
      data.tokens           a line for each token of the server: SHA256,user,uid,"group1,group2"
      data.withdrawn        SHA256 of each token that was removed from its tokens.csv
      data.revoked          its file `revoked`

All servers accept a token of one server, and refuse a token that one server has withdrawn. Only the server's own file
holds the tokens themselves. Pure.
"""

import base64
import binascii
import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.serving.authorization import User
from vipwire_up.credentials.revocation import NOBODY, Revoked, parse_revoked


def encode_texts(data: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}


def text_of(secret: Object, name: str) -> str:
    try:
        return base64.b64decode(str(value_at(secret, "data", name) or ""), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def lines_of(secret: Object, name: str) -> list[str]:
    return text_of(secret, name).splitlines()


SERVER_KIND: Final = "vipwire.io/server"
SERVER_PREFIX: Final = "vipwire-server-"


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """The credentials of a server; tokens by their digests."""

    node: str
    tokens: Mapping[bytes, User] = field(default_factory=dict)
    withdrawn: frozenset[bytes] = frozenset()
    revoked: Revoked = NOBODY

    def with_current(self, tokens: Mapping[bytes, User], revoked: Revoked) -> "TokenRecord":
        """Return the record after the server's tokens changed to these: removed tokens are withdrawn."""
        gone = self.tokens.keys() - tokens.keys()
        return TokenRecord(self.node, dict(tokens), (self.withdrawn | gone) - tokens.keys(), revoked)


def build_server_secret(record: TokenRecord) -> Object:
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for digest, user in sorted(record.tokens.items()):
        writer.writerow((digest.hex(), user.name, "", ",".join(user.groups)))
    data = {
        "tokens": rows.getvalue(),
        "withdrawn": "".join(f"{digest.hex()}\n" for digest in sorted(record.withdrawn)),
        "revoked": "".join(f"{line}\n" for line in _format_revoked(record.revoked)),
    }
    meta = {"name": f"{SERVER_PREFIX}{record.node}", "namespace": "kube-system"}
    return {"metadata": meta, "type": SERVER_KIND, "data": encode_texts(data)}


def read_token_record(secret: Object) -> TokenRecord | None:
    """Parse a record; None for another Secret. Invalid lines are skipped."""
    name = str(value_at(secret, "metadata", "name") or "")
    if secret.get("type") != SERVER_KIND or not name.startswith(SERVER_PREFIX):
        return None
    tokens = dict(_parse_tokens(lines_of(secret, "tokens")))
    withdrawn = frozenset(_parse_digests(lines_of(secret, "withdrawn")))
    try:
        revoked = parse_revoked(Path(name), text_of(secret, "revoked").encode())
    except ConfigError:
        revoked = NOBODY
    return TokenRecord(name.removeprefix(SERVER_PREFIX), tokens, withdrawn, revoked)


def _format_revoked(revoked: Revoked) -> Iterator[str]:
    yield from (f"serial {serial:X}" for serial in sorted(revoked.serials))
    yield from (f"user {name}" for name in sorted(revoked.users))


def _parse_tokens(lines: Iterable[str]) -> Iterator[tuple[bytes, User]]:
    for row in csv.reader(lines):
        digests = list(_parse_digests(row[:1]))
        if len(row) == 4 and digests:
            yield digests[0], User(row[1], tuple(filter(None, row[3].split(","))))


def _parse_digests(texts: Iterable[str]) -> Iterator[bytes]:
    for text in texts:
        try:
            yield bytes.fromhex(text)
        except ValueError:
            continue
