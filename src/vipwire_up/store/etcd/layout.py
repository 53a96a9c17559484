"""The keys and values of a cluster's objects in etcd. Pure.

    PREFIX/objects/RESOURCE/NAMESPACE/NAME   an object, as JSON; NAMESPACE is empty for cluster-scoped objects
    PREFIX/changed                           written by each transaction: its revision is that of the newest one
    PREFIX/tries                             written after a try with an unknown outcome: see transactions.py
    PREFIX/cluster                           the owner of the prefix
    PREFIX/compacted                         the revision that was compacted last
    PREFIX/restored                          written after etcd was restored: all revisions before are void

An object's resourceVersion is the revision that etcd gives the write. It is unknown before, so it is stored as "0"
and set when the object is read.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from vipwire_up.store.etcd.messages import DELETED
from vipwire_up.store.record import Key, Record, RecordChange

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys below a prefix."""

    prefix: str

    def place(self, key: Key) -> bytes:
        return f"{self.prefix}/objects/{key.resource}/{key.namespace}/{key.name}".encode()

    def key(self, place: bytes) -> Key | None:
        """Parse an etcd key; None if it is not an object's."""
        resource, _, rest = place.removeprefix(self.objects).decode(errors="replace").partition("/")
        namespace, slash, name = rest.partition("/")
        return Key(resource, namespace, name) if place.startswith(self.objects) and slash and name else None

    @property
    def objects(self) -> bytes:
        return f"{self.prefix}/objects/".encode()

    @property
    def everything(self) -> tuple[bytes, bytes]:
        """The range of all keys below the prefix: its first, and the one after its last."""
        return f"{self.prefix}/".encode(), f"{self.prefix}0".encode()  # 0 comes after the slash

    @property
    def changed(self) -> bytes:
        """The key that each transaction writes."""
        return f"{self.prefix}/changed".encode()

    @property
    def tries(self) -> bytes:
        """The key whose write makes earlier tries fail."""
        return f"{self.prefix}/tries".encode()

    @property
    def cluster(self) -> bytes:
        return f"{self.prefix}/cluster".encode()

    @property
    def compacted(self) -> bytes:
        return f"{self.prefix}/compacted".encode()

    @property
    def restored(self) -> bytes:
        return f"{self.prefix}/restored".encode()


def at_revision(value: bytes, revision: int) -> bytes:
    """Set the resourceVersion of an object; leave other values as they are."""
    try:
        parts = _OBJECT.decode(value)
        meta = _OBJECT.decode(parts["metadata"])
        meta["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
        parts["metadata"] = msgspec.Raw(msgspec.json.encode(meta))
        return msgspec.json.encode(parts)
    except (msgspec.MsgspecError, LookupError, RecursionError, ValueError):
        return value


def change_of(key: Key, event: Any, previous: Record | None) -> RecordChange | None:
    """Decode an event; None for the deletion of an object that was never seen."""
    revision = event.kv.mod_revision
    if event.type != DELETED:
        return RecordChange(Record(key, revision, at_revision(event.kv.value, revision)), previous)
    if previous is None:
        return None
    return RecordChange(Record(key, revision, at_revision(previous.value, revision)), previous, deleted=True)
