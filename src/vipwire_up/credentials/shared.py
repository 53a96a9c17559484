"""Credentials that API servers share through the store: tokens, withdrawals, certificates of machines.

Each server follows the records of all (records.py) and, if the store is shared, writes its own. So all servers refuse
a credential that one has withdrawn as soon as they see the change.

Each server also follows bootstrap tokens and Nodes: it refuses the certificates that ended with one of them, and
marks them as refused in the machine's record. They stay refused after the token's expiry date.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

from vipwire.kube.errors import ApiError
from vipwire.logging import log
from vipwire_up.api.kinds.node import NODES
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import decode_damaged_record, decode_with_name
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.api.serving.authorization import User
from vipwire_up.credentials.identity import Withdrawn
from vipwire_up.credentials.keys import Keys
from vipwire_up.credentials.machine_records import (
    NAMESPACE,
    TOKEN_PREFIX,
    IssuedCertificate,
    Present,
    read_machine_record,
    refuse_certificates,
    token_uids_by_id,
)
from vipwire_up.credentials.machine_records import PREFIX as MACHINES
from vipwire_up.credentials.records import SERVER_PREFIX as SERVERS
from vipwire_up.credentials.records import TokenRecord, build_server_secret, read_token_record
from vipwire_up.credentials.revocation import Revoked
from vipwire_up.nodes.node import is_ready
from vipwire_up.nodes.objects import LocalObjects
from vipwire_up.store.record import Key, RecordChange
from vipwire_up.store_watch.feed import RETRY_SECONDS, Feed
from vipwire_up.watchdog.guard import Guard


@dataclass(frozen=True, slots=True)
class _Node:
    uid: str
    ready: bool


class SharedCredentials:
    """Keeps the access of one server, on machine `node`, in step with the records."""

    def __init__(
        self,
        registry: Registry,
        keys: Keys,
        node: str,
        guard: Guard[Key] | None = None,
    ) -> None:
        self._registry, self._keys, self._node = registry, keys, node
        self._guard = guard or Guard("shared credentials")
        self._feed = Feed(registry.store, (SECRETS, NODES))
        self._objects = LocalObjects(registry, "vipwire-credentials")
        self._nodes: dict[str, _Node] = {}
        self._tokens: dict[bytes, User] = {}
        self._withdrawn = Withdrawn()
        self._ended_serials: dict[str, set[int]] = {}
        self._told = ""
        self.read_changes()

    async def run(self) -> None:
        await self._feed.run(self.step, self._guard)

    async def step(self) -> float | None:
        """Apply the records, and write this server's own; return the seconds until the next call."""
        self.read_changes()
        try:
            await self._refuse_ended_certificates()
            if self._registry.store.shared:
                await self._write_own_record()
        except ApiError as error:
            if str(error) != self._told:
                log.warning("cannot write the list of revoked credentials; trying again", error=error)
            self._told = str(error)
            return RETRY_SECONDS
        self._told = ""
        return RETRY_SECONDS if self._registry.store.shared else None

    def read_changes(self) -> None:
        changes, anew = self._feed.read_changes()
        if anew:
            self._nodes.clear()
        ended = [self._record_node(change) for change in changes if change.record.key.resource == NODES.id]
        if anew or any(ended) or any(_is_record(change.record.key) for change in changes):
            self._read_records()
        elif not ended:
            return
        ready = frozenset(name for name, node in self._nodes.items() if node.ready)
        self._keys.set_shared_credentials(self._tokens, replace(self._withdrawn, ready=ready))

    def _record_node(self, change: RecordChange) -> bool:
        """Record a Node; report whether certificates may have ended with it."""
        name, value = change.record.key.name, decode_damaged_record(change.record)
        before = self._nodes.pop(name, None)
        if change.deleted:
            return True
        node = self._nodes[name] = _Node(str(value["metadata"].get("uid") or ""), is_ready(value))
        return before is not None and before.uid != node.uid

    def _read_records(self) -> None:
        found = [each for each in self._registry.store.scan(SECRETS.id) if _is_record(each.key)]
        values = {each.key.name: decode_with_name(each) for each in found}
        present = Present(token_uids_by_id(values.values()), {name: node.uid for name, node in self._nodes.items()})
        now, self._ended_serials = self._registry.clock(), {}
        tokens, digests, users, serials = dict[bytes, User](), set[bytes](), set[str](), set[int]()
        for value in values.values():
            if (machine := read_machine_record(value)) is not None:
                ended = {each.serial for each in machine.given if present.describe_end(machine.node, each, now)}
                serials.update(ended, (each.serial for each in machine.refused))
                if ended:
                    self._ended_serials[machine.node] = ended
            elif (server := read_token_record(value)) is not None:
                tokens.update(server.tokens if server.node != self._node else {})
                digests |= server.withdrawn
                users |= server.revoked.users
                serials |= server.revoked.serials
        revoked = Revoked(frozenset(serials), frozenset(users))
        self._tokens, self._withdrawn = tokens, Withdrawn(frozenset(digests), revoked)

    async def _refuse_ended_certificates(self) -> None:
        """Mark ended certificates in the machines' records. Raise ApiError."""
        for node, ended in list(self._ended_serials.items()):
            await refuse_certificates(self._objects, node, partial(_has_serial, ended), self._registry.clock())
            self._ended_serials.pop(node, None)
            log.info("revoking certificates of a deleted token or Node", node=node)

    async def _write_own_record(self) -> None:
        name = f"{SERVERS}{self._node}"
        found = await self._objects.read(SECRETS, NAMESPACE, name)
        before = (read_token_record(found) if found else None) or TokenRecord(self._node)
        now = before.with_current(self._keys.access.own, self._keys.access.revoked)
        if found is None:
            await self._objects.create(SECRETS, NAMESPACE, build_server_secret(now))
        elif now != before:

            def edit(value: Object) -> Object:
                there = read_token_record(value) or before
                return value | {"data": build_server_secret(there.with_current(now.tokens, now.revoked))["data"]}

            await self._objects.edit(SECRETS, NAMESPACE, name, edit)


def _has_serial(serials: Collection[int], certificate: IssuedCertificate) -> bool:
    return certificate.serial in serials


def _is_record(key: Key) -> bool:
    return key.namespace == NAMESPACE and key.name.startswith((MACHINES, SERVERS, TOKEN_PREFIX))
