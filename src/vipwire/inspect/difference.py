"""`vipwire diff`: what a sync would change in the kernel, as the mode's own tool would write it."""

from collections.abc import Iterable
from typing import Any

from vipwire.inspect.family_view import FamilyView
from vipwire.inspect.situation import Situation
from vipwire.inspect.status.document import Document, family_document
from vipwire.model.service import Service
from vipwire.reconcile.delta import Delta


def diff_document(situation: Situation, services: list[Service] | None) -> Document:
    """Describe the difference of every family; of these Services only, where some are named."""
    return {
        "kind": "Diff",
        "node": situation.node_name,
        "mode": situation.config.proxy_mode,
        "families": [_family(side, services) for side in situation.sides],
    }


def _family(side: FamilyView, services: list[Service] | None) -> Document:
    document = family_document(side)
    delta = side.delta
    if delta is None or side.mode is None:
        return document | {"script": []}
    if services is not None:
        delta = FamilyView.within(delta, _keys(side, services))
        document |= {"missing": len(delta.added), "different": len(delta.changed), "surplus": len(delta.removed)}
    return document | {"script": _script(side, delta)}


def _keys(side: FamilyView, services: Iterable[Service]) -> set[Any]:
    rendered = [side.rendered[service.name] for service in services if service.name in side.rendered]
    return {key for each in rendered for part in (each.own, each.shared) for key in part}


def _script(side: FamilyView, delta: Delta[Any, Any]) -> list[str]:
    if not delta:
        return []
    if side.explainer is not None:
        return list(side.explainer.script(delta, anew=bool(side.remains)))
    assert side.mode is not None  # noqa: S101 - the caller has looked
    words = (("add", delta.added), ("change", delta.changed), ("delete", delta.removed))
    return [f"{verb} {side.mode.describe(key)}" for verb, keys in words for key in keys]


def diff_exit(document: Document) -> int:
    """Choose the exit status: 1 if anything would change, 2 if that cannot be told, else 0."""
    if any(family["state"] == "unknown" for family in document["families"]):
        return 2
    return int(any(family["script"] for family in document["families"]))
