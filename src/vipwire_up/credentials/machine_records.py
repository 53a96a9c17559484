"""The certificates of each machine, with their tokens and Nodes; API servers refuse those that have ended.

A Secret `vipwire-machine-NODE` in kube-system holds the record, so every API server of the cluster has it.

    type: vipwire.io/machine
    data.given, data.refused      a line for each certificate: SERIAL EXPIRY
    data.origins                  a line for each certificate: SERIAL USER TOKEN TOKEN-UID TOKEN-EXPIRY NODE-UID

A certificate ends when its join token is deleted, unless the token expired first, and when its Node is deleted: by
UID, so that a new token or Node of the same name does not revive the certificate. An unknown field is a `-`. Records
of earlier versions have no origins: such a certificate ends when it expires or its machine leaves. TLS refuses an
expired certificate; the next change removes its lines.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.model.times import format_time, parse_time
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.credentials.records import encode_texts, lines_of
from vipwire_up.nodes.objects import Objects

KIND: Final = "vipwire.io/machine"
NAMESPACE: Final = "kube-system"
PREFIX: Final = "vipwire-machine-"
TOKEN_PREFIX: Final = "bootstrap-token-"  # noqa: S105  # the name of a Secret begins with it
NODE_USER: Final = "system:node:"
INGRESS_USER: Final = "ingress:"
"""Prefix of the user names of machines' certificates; the Node's name follows."""
_NONE: Final = "-"


@dataclass(frozen=True, slots=True)
class Origin:
    """How a machine got a certificate: its user, its join token, its Node. "" is unknown."""

    user: str = ""
    token: str = ""
    token_uid: str = ""
    token_expiry: datetime | None = None
    node_uid: str = ""


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A machine's certificate, by its serial number."""

    serial: int
    until: datetime
    origin: Origin = field(default=Origin(), compare=False)


@dataclass(frozen=True, slots=True)
class Present:
    """The UIDs of bootstrap tokens by id, and of Nodes by name; "" for a damaged object."""

    tokens: Mapping[str, str]
    nodes: Mapping[str, str]

    def describe_end(self, node: str, certificate: IssuedCertificate, now: datetime) -> str:
        """Return why a machine's certificate has ended; "" if it has not."""
        origin = certificate.origin
        if origin.node_uid and self.nodes.get(node) not in (origin.node_uid, ""):
            return "its Node was removed"
        expired = origin.token_expiry is not None and origin.token_expiry <= now
        if origin.token_uid and not expired and self.tokens.get(origin.token) not in (origin.token_uid, ""):
            return "its token was deleted"
        return ""


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """The certificates of a machine."""

    node: str
    given: frozenset[IssuedCertificate] = frozenset()
    refused: frozenset[IssuedCertificate] = frozenset()

    def with_issued(self, certificate: IssuedCertificate) -> "MachineRecord":
        return replace(self, given=self.given | {certificate})

    def with_all_refused(self, *more: IssuedCertificate) -> "MachineRecord":
        """Refuse all certificates of the machine, and `more`."""
        return replace(self, given=frozenset(), refused=self.refused | self.given | set(more))

    def with_refused(self, has_ended: Callable[[IssuedCertificate], object]) -> "MachineRecord":
        ended = frozenset(filter(has_ended, self.given))
        return replace(self, given=self.given - ended, refused=self.refused | ended)

    def without_token(self, token: str) -> "MachineRecord":
        """Drop a token from the origins, so that its certificates outlive it."""
        given = (
            replace(each, origin=replace(each.origin, token_uid="")) if each.origin.token == token else each
            for each in self.given
        )
        return replace(self, given=frozenset(given))

    def find_certificate(self, serial: int) -> IssuedCertificate | None:
        return next((each for each in (*self.refused, *self.given) if each.serial == serial), None)


def build_machine_secret(record: MachineRecord, now: datetime) -> Object:
    """Build the Secret of a record, without expired certificates."""
    meta = {"name": f"{PREFIX}{record.node}", "namespace": NAMESPACE}
    given, refused = (
        sorted((each for each in certificates if each.until > now), key=lambda each: (each.until, each.serial))
        for certificates in (record.given, record.refused)
    )
    data = {
        "given": "".join(f"{each.serial:X} {format_time(each.until)}\n" for each in given),
        "refused": "".join(f"{each.serial:X} {format_time(each.until)}\n" for each in refused),
        "origins": "".join(_format_origin(each) for each in (*given, *refused) if each.origin != Origin()),
    }
    return {"metadata": meta, "type": KIND, "data": encode_texts(data)}


def read_machine_record(secret: Object) -> MachineRecord | None:
    """Parse a record; None for another Secret. Invalid lines are skipped."""
    name = str(value_at(secret, "metadata", "name") or "")
    if secret.get("type") != KIND or not name.startswith(PREFIX):
        return None
    origins = dict(_read_origins(lines_of(secret, "origins")))
    given, refused = (
        frozenset(
            IssuedCertificate(serial, until, origins.get(serial, Origin()))
            for serial, until in _read_certificates(lines_of(secret, key))
        )
        for key in ("given", "refused")
    )
    return MachineRecord(name.removeprefix(PREFIX), given, refused)


def format_certificate_table(records: Iterable[MachineRecord], present: Present, now: datetime) -> Iterator[str]:
    yield f"{'SERIAL':42}{'EXPIRES':22}{'TOKEN':8}{'USER':34}STATE"
    for record in sorted(records, key=lambda each: each.node):
        found = [(each, present.describe_end(record.node, each, now) or "in force") for each in record.given]
        found += [(each, "refused") for each in record.refused]
        for each, state in sorted(found, key=lambda pair: (pair[0].origin.user, pair[0].until, pair[0].serial)):
            if each.until > now:
                user = each.origin.user or f"of {record.node}"
                expiry, token = format_time(each.until), each.origin.token or _NONE
                yield f"{each.serial:<42X}{expiry:22}{token:8}{user:34}{state}"


def token_uids_by_id(secrets: Iterable[Object]) -> dict[str, str]:
    """Return the UIDs of the bootstrap tokens among Secrets of kube-system, by id."""
    found = (
        (str(value_at(each, "metadata", "name") or ""), str(value_at(each, "metadata", "uid") or ""))
        for each in secrets
    )
    return {name.removeprefix(TOKEN_PREFIX): uid for name, uid in found if name.startswith(TOKEN_PREFIX)}


async def refuse_certificates(
    objects: Objects, node: str, has_ended: Callable[[IssuedCertificate], bool], now: datetime
) -> None:
    """Refuse those of a machine's certificates that have ended. Raise ApiError if the record cannot be written."""
    await change_machine_record(objects, node, lambda record: record.with_refused(has_ended), now)


async def change_machine_record(
    objects: Objects, node: str, change: Callable[[MachineRecord], MachineRecord], now: datetime
) -> None:
    """Change a machine's record; create it if missing. Raise ApiError if it cannot be written."""

    def edit(value: Object) -> Object:
        record = change(read_machine_record(value) or MachineRecord(node))
        return value | {"data": build_machine_secret(record, now)["data"]}

    try:
        await objects.edit(SECRETS, NAMESPACE, f"{PREFIX}{node}", edit)
    except ApiError as error:
        if error.code != 404:
            raise
        await objects.create(SECRETS, NAMESPACE, build_machine_secret(change(MachineRecord(node)), now))


def _format_origin(certificate: IssuedCertificate) -> str:
    origin = certificate.origin
    expiry = format_time(origin.token_expiry) if origin.token_expiry else ""
    fields = (origin.user, origin.token, origin.token_uid, expiry, origin.node_uid)
    return " ".join((f"{certificate.serial:X}", *(each or _NONE for each in fields))) + "\n"


def _read_origins(lines: Iterable[str]) -> Iterator[tuple[int, Origin]]:
    for line in lines:
        serial, *fields = ("" if word == _NONE else word for word in line.split(" "))
        try:
            user, token, token_uid, expiry, node_uid = fields
            yield int(serial, 16), Origin(user, token, token_uid, parse_time(expiry) if expiry else None, node_uid)
        except ValueError:
            continue


def _read_certificates(lines: Iterable[str]) -> Iterator[tuple[int, datetime]]:
    for line in lines:
        serial, _, until = line.partition(" ")
        try:
            yield int(serial, 16), parse_time(until)
        except ValueError:
            continue
