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

from typing import Any

import msgspec

from vipwire_up.store.etcd.messages import DELETED
from vipwire_up.store.record import Key, Record, RecordChange

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Layout:
    """The keys below a prefix. `everything` is the range of them all: the first, and the one after the last."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.objects = f"{prefix}/objects/".encode()
        self.everything = f"{prefix}/".encode(), f"{prefix}0".encode()  # 0 comes after the slash
        self.changed, self.tries, self.cluster, self.compacted, self.restored = (
            f"{prefix}/{name}".encode() for name in ("changed", "tries", "cluster", "compacted", "restored")
        )

    def key_bytes(self, key: Key) -> bytes:
        return f"{self.prefix}/objects/{key.resource}/{key.namespace}/{key.name}".encode()

    def parse_key(self, place: bytes) -> Key | None:
        """Parse an etcd key; None if it is not an object's."""
        resource, _, rest = place.removeprefix(self.objects).decode(errors="replace").partition("/")
        namespace, slash, name = rest.partition("/")
        return Key(resource, namespace, name) if place.startswith(self.objects) and slash and name else None


def encode_at_revision(value: bytes, revision: int) -> bytes:
    """Set the resourceVersion of an object; leave other values as they are."""
    try:
        parts = _OBJECT.decode(value)
        meta = _OBJECT.decode(parts["metadata"])
        meta["resourceVersion"] = msgspec.Raw(b'"%d"' % revision)
        parts["metadata"] = msgspec.Raw(msgspec.json.encode(meta))
        return msgspec.json.encode(parts)
    except (msgspec.MsgspecError, LookupError, RecursionError, ValueError):
        return value


def build_change(key: Key, event: Any, previous: Record | None) -> RecordChange | None:
    """Decode an event; None for the deletion of an object that was never seen."""
    revision = event.kv.mod_revision
    if event.type != DELETED:
        return RecordChange(Record(key, revision, encode_at_revision(event.kv.value, revision)), previous)
    if previous is None:
        return None
    return RecordChange(Record(key, revision, encode_at_revision(previous.value, revision)), previous, deleted=True)
