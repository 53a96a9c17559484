"""The API that joining machines use: the authority's certificate for all clients, certificates for machines.

All paths are below /vipwire.io/v1/.

    GET  authority      the authority's certificate. The client compares its hash with --ca-hash
    POST certificates   {"request": PEM}: a request for system:node:NAME, signed for a bootstrap token, unless
                        another machine is Ready under that name, and for system:node:NAME itself, as a renewal. A
                        request for ingress:NAME, the user of role ingress, is signed for system:node:NAME. A machine
                        that joins under the name of an earlier one replaces it: the earlier certificates are refused
    POST departures     {"certificates": [PEM...]} of system:node:NAME, which leaves: its certificates are refused
                        from now on, and its Node and Lease are deleted. An admin sends {"node": NAME}
    GET  servers        the authority with its key, for a token of the group of servers

A token admits MOST_MACHINES machines, including those that have left, and a machine has MOST_CERTIFICATES unexpired
ones, including refused ones: so a stolen token or key fills neither the store nor the list of Nodes.

A certificate ends with the machine's join token, and with its Node. The first certificate creates the Node: so
`kubectl get nodes` shows each machine that has a certificate. A renewed certificate has the origin of the one that
the machine used to ask.

`check` decides by user, method and path alone, so that the API server reads no body of a caller without rights.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from vipwire.errors import ConfigError
from vipwire.kube.errors import ApiError
from vipwire.logging import log
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import LEASES, SECRETS
from vipwire_up.api.objects.errors import bad_request, forbidden_object, internal_error
from vipwire_up.api.objects.names import check_subdomain
from vipwire_up.api.objects.object import decode_damaged_record, decode_record, key_of, value_at
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.registry import Registry
from vipwire_up.api.serving.authorization import Role, User
from vipwire_up.credentials.ca import Authority
from vipwire_up.credentials.machine_records import (
    INGRESS_USER,
    NAMESPACE,
    NODE_USER,
    PREFIX,
    TOKEN_PREFIX,
    IssuedCertificate,
    MachineRecord,
    Origin,
    Present,
    change_machine_record,
    read_machine_record,
)
from vipwire_up.joining.tokens import (
    GROUP,
    SERVERS,
    USER,
    Token,
    groups_of_token,
    is_valid_token,
    parse_token,
    read_token_secret,
)
from vipwire_up.nodes.node import NODE_LEASES, build_undeclared_node, is_ready
from vipwire_up.nodes.objects import LocalObjects

PATH: Final = "/vipwire.io/v1/"
_ROLES: Final = {NODE_USER: Role.NODE, INGRESS_USER: Role.INGRESS}
_RSA_BITS: Final = 2048
MOST_MACHINES: Final = 500
MOST_CERTIFICATES: Final = 64
_UNKNOWN: Final = Origin()


class Enrolment:
    """Answers these requests. `authority` opens the signing authority; `refusing` is called after a departure."""

    def __init__(
        self,
        registry: Registry,
        authority: Callable[[], Authority],
        clock: Callable[[], datetime],
        refusing: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self._authority, self._clock = registry, authority, clock
        self._objects, self._refusing = LocalObjects(registry, "vipwire-machines"), refusing

    def user_of_token(self, text: str) -> User | None:
        found = parse_token(text)
        if found is None:
            return None
        token = self._find_token(found[0])
        if token is None or not is_valid_token(token, found[1], self._clock()):
            return None
        return User(f"{USER}{token.id}", (*groups_of_token(token), "system:authenticated"))

    def _find_token(self, name: str) -> Token | None:
        record = self._registry.store.read(key_of(SECRETS, NAMESPACE, f"{TOKEN_PREFIX}{name}"))
        return read_token_secret(decode_damaged_record(record)) if record is not None else None

    def check(self, user: User, method: str, path: str) -> None:
        """Raise ApiError unless the user may send such a request. `answer` checks the names in the body."""
        machine, admin = user.name.startswith(NODE_USER), Role.ADMIN.value in user.groups
        match method, path.removeprefix(PATH):
            case "GET", "authority":
                return
            case "POST", "certificates":
                if not machine and GROUP not in user.groups:
                    raise forbidden_object(
                        "certificates", "", f'User "{user.name}" cannot get the certificate of a machine'
                    )
            case "POST", "departures":
                if not machine and not admin:
                    why = f'User "{user.name}" cannot remove a machine: the user is not a machine'
                    raise forbidden_object("departures", "", why)
            case "GET", "servers":
                if SERVERS not in user.groups:
                    why = (
                        f'User "{user.name}" cannot get the key of the authority: only a token made with --server can'
                    )
                    raise forbidden_object("servers", "", why)
            case _:
                raise ApiError(404, "NotFound", "the server could not find the requested resource")

    async def answer(self, user: User, path: str, body: bytes) -> dict[str, Any]:
        try:
            match path.removeprefix(PATH):
                case "certificates":
                    return await self._sign_request(user, body)
                case "departures":
                    return await self._remove_machine(user, body)
                case "servers":
                    return self._send_authority_key(user)
            return {"certificate": self._authority().text}
        except ConfigError as error:  # an operator has changed or removed the authority's files
            raise internal_error("the server cannot open its authority: see the server's log") from error

    async def _sign_request(self, user: User, body: bytes) -> dict[str, Any]:
        request = _parse_signing_request(body)
        kind, node = _split_subject(request.subject)
        if joins := user.name != f"{NODE_USER}{node}":
            if GROUP not in user.groups or kind != NODE_USER:
                why = f'User "{user.name}" cannot get the certificate of Node "{node}"'
                raise forbidden_object("certificates", node, why)
            origin = await self._token_origin(user, node)
        else:
            origin = self._find_own_origin(user, node)
        authority, name = self._authority(), f"{kind}{node}"
        made = authority.sign_client_key(request.public_key(), name, (_ROLES[kind].value,))
        issued = _record_issued(x509.load_pem_x509_certificate(made), replace(origin, user=name))
        replaced = list[IssuedCertificate]()

        def noted(record: MachineRecord) -> MachineRecord:
            if sum(each.until > self._clock() for each in (*record.given, *record.refused)) >= MOST_CERTIFICATES:
                why = (
                    f'Node "{node}" has {MOST_CERTIFICATES} certificates that have not expired: join as another Node'
                )
                raise forbidden_object("certificates", node, why)
            replaced[:] = record.given if joins else ()
            return (record.with_all_refused() if joins else record).with_issued(issued)

        await change_machine_record(self._objects, node, noted, self._clock())
        if replaced:
            log.warning(
                "a machine joined under the name of an earlier machine: refusing the earlier machine", node=node
            )
            self._refusing()
        log.info("signed a machine's certificate", node=node, role=_ROLES[kind].name.lower(), user=user.name)
        return {"certificate": made.decode(), "authority": authority.text}

    def _find_own_origin(self, user: User, node: str) -> Origin:
        """Return the origin of the certificate that a machine used to ask. Raise ApiError if it has ended."""
        uid = self._uid_of(NODES, "", node)
        if uid is None:
            why = f'there is no Node "{node}": the machine was removed from the cluster: join again'
            raise forbidden_object("certificates", node, why)
        secret = self._registry.store.read(key_of(SECRETS, NAMESPACE, f"{PREFIX}{node}"))
        record = (read_machine_record(decode_damaged_record(secret)) if secret else None) or MachineRecord(node)
        asking = record.find_certificate(user.serial)
        if asking is None:  # an earlier version signed it
            return Origin(node_uid=uid)
        token = self._uid_of(SECRETS, NAMESPACE, f"{TOKEN_PREFIX}{asking.origin.token}")
        present = Present({asking.origin.token: token} if token is not None else {}, {node: uid})
        if (
            why := ("the server refused the renewal")
            if asking in record.refused
            else present.describe_end(node, asking, self._clock())
        ):
            raise forbidden_object("certificates", node, f"the certificate of this machine has expired: {why}")
        return replace(asking.origin, node_uid=uid)

    async def _token_origin(self, user: User, node: str) -> Origin:
        """Return the origin for a joining machine, whose Node is created. Raise ApiError."""
        found = self._registry.store.read(key_of(NODES, "", node))
        if found is not None and is_ready(decode_record(found)):
            message = f"a machine is Ready as Node {node}: choose another --node-name, or remove that machine"
            raise ApiError(409, "Conflict", message)
        token = None
        if user.name.startswith(USER) and (token := self._find_token(user.name.removeprefix(USER))) is None:
            raise ApiError(401, "Unauthorized", "Unauthorized")  # deleted since the request began
        if token is not None and self._count_machines_of(token.id, node) >= MOST_MACHINES:
            raise forbidden_object(
                "certificates", node, f"{MOST_MACHINES} machines have joined with this token: create another token"
            )
        value = decode_record(found) if found else await self._objects.create(NODES, "", build_undeclared_node(node))
        uid = str(value_at(value, "metadata", "uid") or "")
        return Origin("", token.id, token.uid, token.expires, uid) if token else Origin(node_uid=uid)

    def _count_machines_of(self, token: str, node: str) -> int:
        now, found = self._clock(), self._registry.store.scan(SECRETS.id)
        secrets = (each for each in found if each.key.namespace == NAMESPACE and each.key.name.startswith(PREFIX))
        records = filter(None, map(read_machine_record, map(decode_damaged_record, secrets)))
        return sum(
            any(each.origin.token == token and each.until > now for each in (*record.given, *record.refused))
            for record in records
            if record.node != node
        )

    def _uid_of(self, resource: Resource, namespace: str, name: str) -> str | None:
        record = self._registry.store.read(key_of(resource, namespace, name))
        return str(decode_damaged_record(record)["metadata"].get("uid") or "") if record is not None else None

    async def _remove_machine(self, user: User, body: bytes) -> dict[str, Any]:
        sent = _decode_body(body)
        node = user.name.removeprefix(NODE_USER)
        if Role.ADMIN.value in user.groups:
            node = str(sent.get("node") or "")
        if not node or check_subdomain(node):
            raise bad_request("expected {'node': the name of a Node}")
        shown = tuple(self._select_own_certificates(node, sent.get("certificates")))
        await change_machine_record(
            self._objects, node, lambda record: record.with_all_refused(*shown), self._clock()
        )
        self._refusing()
        await self._objects.delete(LEASES, NODE_LEASES, node)
        await self._objects.delete(NODES, "", node)
        log.info("refusing the certificates of a machine that has left", node=node, user=user.name)
        return {"node": node}

    def _select_own_certificates(self, node: str, certificates: Any) -> Iterator[IssuedCertificate]:
        """Yield those certificates that belong to the machine: it cannot revoke another machine's."""
        authority = self._authority()
        for text in certificates if isinstance(certificates, list) else ():
            try:
                found = x509.load_pem_x509_certificate(str(text).encode())
                ours = authority.has_signed(found) and _split_subject(found.subject)[1] == node
            except (ValueError, ApiError):
                continue
            if ours:
                yield _record_issued(found)

    def _send_authority_key(self, user: User) -> dict[str, Any]:
        authority = self._authority()
        log.warning("gave the key of the authority to a machine that becomes an API server", user=user.name)
        return {"certificate": authority.text, "key": authority.pair.key.read_text()}


def _parse_signing_request(body: bytes) -> x509.CertificateSigningRequest:
    try:
        request = x509.load_pem_x509_csr(_decode_body(body)["request"].encode())
    except (AttributeError, LookupError, TypeError, ValueError):
        raise bad_request("expected {'request': a certificate request in PEM}") from None
    key = request.public_key()
    strong = isinstance(key, ec.EllipticCurvePublicKey) or (
        isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS
    )
    if not strong or not request.is_signature_valid:
        raise bad_request(f"the request must have a key of an elliptic curve, or of RSA with {_RSA_BITS} bits")
    return request


def _decode_body(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        value = None
    if not isinstance(value, dict):
        raise bad_request("the body of the request is not a JSON object")
    return value


def _record_issued(certificate: x509.Certificate, origin: Origin = _UNKNOWN) -> IssuedCertificate:
    return IssuedCertificate(certificate.serial_number, certificate.not_valid_after_utc, origin)


def _split_subject(subject: x509.Name) -> tuple[str, str]:
    """Return the prefix of the user and the Node's name in a subject."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(names[0].value) if len(names) == 1 else ""
    kind = next((each for each in _ROLES if name.startswith(each)), "")
    node = name.removeprefix(kind)
    if not kind or check_subdomain(node):
        raise bad_request(f"the subject must be {NODE_USER}NAME or {INGRESS_USER}NAME, where NAME can name a Node")
    return kind, node
