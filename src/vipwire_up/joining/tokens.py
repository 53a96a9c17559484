"""Bootstrap tokens, with which a machine gets its own credentials: kubeadm's form and Secrets; their expiry.

A token is `ID.SECRET`, six and sixteen characters of a-z and 0-9. The cluster keeps it as a Secret
`bootstrap-token-ID` of type bootstrap.kubernetes.io/token in kube-system. It expires by its field `expiration`.
Source: https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/
"""

import asyncio
import contextlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.logging import log
from vipwire.model.times import format_time, parse_time
from vipwire_up.api.change import Options
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import decode_damaged_record, value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.credentials.machine_records import NAMESPACE, TOKEN_PREFIX
from vipwire_up.credentials.records import encode_texts, text_of

USER: Final = "system:bootstrap:"
"""Prefix of the user name of a token; the token's id follows."""
KIND: Final = "bootstrap.kubernetes.io/token"
GROUP: Final = "system:bootstrappers"
SERVERS: Final = "system:bootstrappers:vipwire:servers"
"""The group of tokens that may also fetch the authority's key, and so make an API server."""
_FORM: Final = re.compile(r"([a-z0-9]{6})\.([a-z0-9]{16})")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the cluster keeps it. `expires` None is for ever."""

    id: str
    secret: str
    expires: datetime | None = None
    groups: tuple[str, ...] = ()
    usable: bool = True
    description: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.id}.{self.secret}"

    def has_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now


def parse_token(text: str) -> tuple[str, str] | None:
    found = _FORM.fullmatch(text)
    return (found[1], found[2]) if found else None


def generate_token(below: Callable[[int], int]) -> tuple[str, str]:
    """Generate an id and a secret; `below` returns an unpredictable number from 0 up to its argument."""
    letters = "".join(_LETTERS[below(len(_LETTERS))] for _ in range(22))
    return letters[:6], letters[6:]


def build_token_secret(token: Token) -> Object:
    data = {"token-id": token.id, "token-secret": token.secret, "usage-bootstrap-authentication": "true"}
    if token.expires is not None:
        data["expiration"] = format_time(token.expires)
    if token.groups:
        data["auth-extra-groups"] = ",".join(token.groups)
    if token.description:
        data["description"] = token.description
    meta = {"name": f"{TOKEN_PREFIX}{token.id}", "namespace": NAMESPACE}
    return {"metadata": meta, "type": KIND, "data": encode_texts(data)}


def read_token_secret(secret: Object) -> Token | None:
    """Parse a token's Secret; None for any other, and for one whose name and fields contradict each other."""
    if secret.get("type") != KIND:
        return None
    data = {name: text_of(secret, name) for name in secret.get("data") or {}}
    found = parse_token(f"{data.get('token-id', '')}.{data.get('token-secret', '')}")
    if found is None or value_at(secret, "metadata", "name") != f"{TOKEN_PREFIX}{found[0]}":
        return None
    try:
        expires = parse_time(data["expiration"]) if data.get("expiration") else None
    except ValueError:  # an invalid expiration must not mean "never"
        return None
    groups = tuple(filter(None, data.get("auth-extra-groups", "").split(",")))
    usable = data.get("usage-bootstrap-authentication") == "true"
    uid = str(value_at(secret, "metadata", "uid") or "")
    return Token(*found, expires, groups, usable, data.get("description", ""), uid)


def is_valid_token(token: Token | None, secret: str, now: datetime) -> bool:
    if token is None or not token.usable or token.has_expired(now):
        return False
    return hmac.compare_digest(token.secret, secret)


def groups_of_token(token: Token) -> tuple[str, ...]:
    """Return the groups of a token's user; others than bootstrappers' give no rights, as in Kubernetes."""
    return (GROUP, *(group for group in token.groups if group.startswith(f"{GROUP}:")))


def format_token_table(found: Iterable[Token], now: datetime) -> Iterator[str]:
    yield f"{'ID':8}{'EXPIRES':22}{'FOR':10}DESCRIPTION"
    for token in sorted(found, key=lambda each: each.id):
        expires = "expired" if token.has_expired(now) else format_time(token.expires) if token.expires else "never"
        yield f"{token.id:8}{expires:22}{'servers' if SERVERS in token.groups else 'machines':10}{token.description}"


_EVERY: Final = 60.0
_KEPT: Final = timedelta(minutes=10)
_OPTIONS: Final = Options(manager="vipwire-tokens", validation="Ignore")


async def delete_ended_tokens(registry: Registry, clock: Callable[[], datetime]) -> None:
    """Delete expired tokens once a minute, until cancelled."""
    while True:
        await delete_expired(registry, clock())
        await asyncio.sleep(_EVERY)


async def delete_expired(registry: Registry, now: datetime) -> None:
    for record in tuple(registry.store.scan(SECRETS.id)):
        if record.key.namespace == NAMESPACE and record.key.name.startswith(TOKEN_PREFIX):
            token = read_token_secret(decode_damaged_record(record))
            if token is not None and token.has_expired(now - _KEPT):
                with contextlib.suppress(ApiError):  # already deleted, or the disk is full: try again in a minute
                    await registry.delete(SECRETS, NAMESPACE, record.key.name, options=_OPTIONS)
                    log.info("deleted an expired bootstrap token", token=token.id)
