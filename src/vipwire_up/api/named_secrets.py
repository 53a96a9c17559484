"""The Secrets that Ingresses and Gateways name: the role ingress may read these and no others.

The rule is that of Kubernetes' node authorizer. An Ingress names a Secret in spec.tls or in an annotation
…/auth-secret, an object of the Gateway API in a reference of kind Secret. A list shows the Secrets that are named
now. A watch ends with 410 when the set of named Secrets changes; the client's next list shows the new set.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

from vipwire_up.api.kinds.gateway import GATEWAY_RESOURCES
from vipwire_up.api.kinds.ingress import INGRESSES
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.errors import expired_revision
from vipwire_up.api.objects.object import decode_damaged_record, value_at
from vipwire_up.api.watching import encode_error_line
from vipwire_up.store.record import CompactedError, FutureRevisionError, Key, Record
from vipwire_up.store.store import Store

_NAMING: Final = (INGRESSES.id, *(each.id for each in GATEWAY_RESOURCES))
_LOGIN: Final = "/auth-secret"
"""The suffix of annotations that name a Secret, under any prefix."""


class NamedSecrets:
    """The Secrets that a store's objects name, kept current."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._named = Counter[Key]()
        self._seen = -1
        self._changed = 0
        self._read_changes()

    def __contains__(self, key: Key) -> bool:
        self._read_changes()
        return self._named[key] > 0

    def last_change(self) -> int:
        """Return the revision of the last change of the named Secrets. Secrets that do not exist do not count."""
        self._read_changes()
        return self._changed

    async def pass_until_secrets_change(
        self, events: AsyncGenerator[bytes, None], since: int
    ) -> AsyncGenerator[bytes, None]:
        """Pass on a watch's events after revision `since` (0: now), until the set of named Secrets changes."""
        since = since or self._store.revision
        async with contextlib.aclosing(events):
            if self.last_change() <= since:
                async with contextlib.aclosing(self._pass_until_changed(events, since)) as unchanged:
                    async for lines in unchanged:
                        yield lines
            if self.last_change() > since:
                why = f"Ingresses and Gateways refer to other Secrets than at resource version {since}: list again"
                yield encode_error_line(expired_revision(why))

    async def _pass_until_changed(
        self, events: AsyncGenerator[bytes, None], since: int
    ) -> AsyncGenerator[bytes, None]:
        changing, step = (
            asyncio.ensure_future(self._wait_for_change(since)),
            asyncio.ensure_future(anext(events, None)),
        )
        try:
            while await asyncio.wait((step, changing), return_when=asyncio.FIRST_COMPLETED):
                if changing.done() or (lines := step.result()) is None:
                    return
                yield lines
                step = asyncio.ensure_future(anext(events, None))
        finally:
            changing.cancel()
            step.cancel()
            await asyncio.gather(changing, step, return_exceptions=True)

    async def _wait_for_change(self, since: int) -> None:
        while self.last_change() <= since:
            await self._store.wait_for_revision(self._seen + 1)

    def _read_changes(self) -> None:
        until = self._store.revision
        if until == self._seen:
            return
        try:
            self._count_changes() if self._seen >= 0 else self._count_all()
        except (CompactedError, FutureRevisionError):  # the store has compacted that revision
            self._count_all()
        self._seen = until

    def _count_all(self) -> None:
        self._named = Counter(
            key for kind in _NAMING for each in self._store.scan(kind) for key in _list_named_secrets(each)
        )
        self._changed = self._store.revision

    def _count_changes(self) -> None:
        for change in [change for kind in _NAMING for change in self._store.changes(kind, self._seen)]:
            before = set(_list_named_secrets(change.previous)) if change.previous else set[Key]()
            now = set[Key]() if change.deleted else set(_list_named_secrets(change.record))
            for key, step in (*((key, 1) for key in now - before), *((key, -1) for key in before - now)):
                was = self._named[key] > 0
                self._named[key] += step
                if was != (self._named[key] > 0) and self._store.read(key) is not None:
                    self._changed = max(self._changed, change.revision)
                if not self._named[key]:
                    del self._named[key]


def _list_named_secrets(record: Record) -> Iterator[Key]:
    """Yield the Secrets that an object names, each once. The object's fields may have any type."""
    value = decode_damaged_record(record)
    found = (
        _list_ingress_secrets(value)
        if record.key.resource == INGRESSES.id
        else _list_secret_references(value.get("spec"))
    )
    yield from {
        Key(SECRETS.id, namespace or record.key.namespace, name)
        for namespace, name in found
        if isinstance(namespace, str) and isinstance(name, str) and name
    }


def _list_ingress_secrets(value: Any) -> Iterator[tuple[Any, Any]]:
    served = value_at(value, "spec", "tls")
    for each in served if isinstance(served, list) else ():
        yield "", value_at(each, "secretName")
    annotations = value_at(value, "metadata", "annotations")
    for name, text in annotations.items() if isinstance(annotations, dict) else ():
        if name.endswith(_LOGIN) and isinstance(text, str):
            namespace, _, secret = text.strip().rpartition("/")
            yield namespace, secret


def _list_secret_references(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, list):
        for each in value:
            yield from _list_secret_references(each)
    elif isinstance(value, dict):
        if value.get("kind") == "Secret" and not value.get("group"):
            yield value.get("namespace") or "", value.get("name")
        for each in value.values():
            yield from _list_secret_references(each)
