"""From kubectl's client-side apply to its server-side one: the annotation that holds what was applied last. Pure.

To the server the older way is an update, by a manager of another name: who goes over to `--server-side` with another
manifest would be in conflict with nobody but himself. So an apply by the manager `kubectl` may change what stands in
the annotation as it is in the object, and renews the annotation, for the way back
(apimachinery/pkg/util/managedfields/internal, lastappliedmanager.go and lastappliedupdater.go).
"""

import json
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.bodies.decode import Findings, decode
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.resource import Object, Resource
from vipwire_up.api.patches.apply import Writer
from vipwire_up.api.patches.fieldset import Paths, members

ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"
_KUBECTL: Final = "kubectl"
_MOST: Final = 256 << 10
"""Bytes of all annotations that an object may have."""


def undisputed(live: Object, resource: Resource, writer: Writer) -> Paths:
    """List the fields that a writer's apply may change, whoever owns them."""
    text = _annotation(live, writer)
    try:
        said = json.loads(text) if text else {}
        decode(said, resource.type, Findings())  # for its refusals: somebody may have written anything
    except (ValueError, RecursionError, ApiError):
        return frozenset()
    has = members(live, resource.type)
    return frozenset(
        path for path, value in members(said, resource.type).items() if path in has and has[path] == value
    )


def renewed(merged: Object, wanted: Object, writer: Writer) -> Object:
    """Update the annotation, if there is one, to what a writer has applied."""
    if not _annotation(merged, writer):
        return merged
    meta = wanted["metadata"]
    others = {name: text for name, text in (meta.get("annotations") or {}).items() if name != ANNOTATION}
    said = wanted | {"metadata": meta | {"annotations": others}}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"  # as kubectl writes it
    kept = merged["metadata"]["annotations"] | {ANNOTATION: text}
    if len(text) > _MOST:
        del kept[ANNOTATION]
    return merged | {"metadata": merged["metadata"] | {"annotations": kept}}


def _annotation(value: Object, writer: Writer) -> str:
    if writer.manager != _KUBECTL or writer.subresource:
        return ""
    return str((at(value, "metadata", "annotations") or {}).get(ANNOTATION, ""))
