"""Credentials that API servers share through the store: tokens, what is withdrawn, machines that have left.

Each server follows the records of all (records.py); where the store is shared, it writes
its own. So what is withdrawn at one server is refused at all of them as soon as they see the change.
"""

from typing import Final

from vipwire.kube.errors import ApiError
from vipwire.process import log
from vipwire.process.supervision import Guard
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.object import readable
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.api.serving.authorization import User
from vipwire_up.credentials.identity import Withdrawn
from vipwire_up.credentials.keys import Keys
from vipwire_up.credentials.records import MACHINE_PREFIX as MACHINES
from vipwire_up.credentials.records import SERVER_PREFIX as SERVERS
from vipwire_up.credentials.records import ServerRecord, read_machine, read_server, server_secret
from vipwire_up.credentials.revocation import Revoked
from vipwire_up.machines.objects import LocalObjects
from vipwire_up.store.record import Key
from vipwire_up.store_feed.feed import Feed

NAMESPACE: Final = "kube-system"


class SharedCredentials:
    """Keeps the access of one server, on machine `node`, as the records say."""

    def __init__(
        self,
        registry: Registry,
        keys: Keys,
        node: str,
        guard: Guard[Key] | None = None,
    ) -> None:
        self._registry, self._keys, self._node = registry, keys, node
        self._guard = guard or Guard("shared credentials")
        self._feed = Feed(registry.store, (SECRETS,))
        self._objects = LocalObjects(registry, "vipwire-credentials")
        self._told = ""
        self.look()

    async def run(self) -> None:
        """Work until cancelled."""
        await self._feed.run(self.step, self._guard)

    async def step(self) -> bool:
        """Follow what the others say, and tell what is here; report whether to look again though nobody writes."""
        self.look()
        if self._registry.store.shared:
            try:
                await self._publish()
            except ApiError as error:
                if str(error) != self._told:
                    log.warning("cannot tell the other API servers what is withdrawn here", error=error)
                self._told = str(error)
            else:
                self._told = ""
        return self._registry.store.shared

    def look(self) -> None:
        """Take over what the records say, if any of them has changed."""
        changes, anew = self._feed.look()
        if not anew and not any(_is_record(change.record.key) for change in changes):
            return
        tokens, digests, users, serials = dict[bytes, User](), set[bytes](), set[str](), set[int]()
        for record in self._registry.store.scan(SECRETS.id):
            if not _is_record(record.key):
                continue
            value = readable(record)
            if (machine := read_machine(value)) is not None:
                serials.update(each.serial for each in machine.refused)
            elif (server := read_server(value)) is not None:
                tokens.update(server.tokens if server.node != self._node else {})
                digests |= server.withdrawn
                users |= server.revoked.users
                serials |= server.revoked.serials
        withdrawn = Withdrawn(frozenset(digests), Revoked(frozenset(serials), frozenset(users)))
        self._keys.share(tokens, withdrawn)

    async def _publish(self) -> None:
        name = f"{SERVERS}{self._node}"
        found = await self._objects.read(SECRETS, NAMESPACE, name)
        before = (read_server(found) if found else None) or ServerRecord(self._node)
        now = before.now(self._keys.access.own, self._keys.access.revoked)
        if found is None:
            await self._objects.create(SECRETS, NAMESPACE, server_secret(now))
        elif now != before:

            def edit(value: Object) -> Object:
                there = read_server(value) or before
                return value | {"data": server_secret(there.now(now.tokens, now.revoked))["data"]}

            await self._objects.edit(SECRETS, NAMESPACE, name, edit)


def _is_record(key: Key) -> bool:
    return key.namespace == NAMESPACE and key.name.startswith((MACHINES, SERVERS))
