"""`vipwire diff`: the changes that a sync would make in the kernel, as commands of the mode's own tool."""

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.document import Document, build_family_document
from vipwire.model.net import Family
from vipwire.model.service import Service
from vipwire.reconcile.delta import Delta


def diff_document(
    situation: Situation, services: list[Service] | None, families: Collection[Family] = tuple(Family)
) -> Document:
    """Describe the difference of these families, limited to `services` unless None."""
    return {
        "kind": "Diff",
        "node": situation.node_name,
        "mode": situation.config.proxy_mode,
        "families": [_build_family_document(side, services) for side in situation.sides if side.family in families],
    }


def _build_family_document(side: FamilyView, services: list[Service] | None) -> Document:
    document = build_family_document(side)
    delta = side.delta
    if delta is None or side.mode is None:
        return document | {"tool": "", "script": [], "objects": []}
    if services is not None:
        delta = FamilyView.restrict_delta(delta, _collect_keys_of_services(side, services))
        document |= {"missing": len(delta.added), "different": len(delta.changed), "surplus": len(delta.removed)}
    taker = side.explainer.tool if side.explainer is not None else ""
    objects = [side.mode.describe(key) for keys in (delta.added, delta.changed, delta.removed) for key in keys]
    removal = side.explainer.write_removal_of_foreign() if side.explainer is not None and side.remains else ()
    lines = [*removal, *write_script(side, delta)] if delta else []
    return document | {"tool": taker, "script": lines, "objects": objects}


def _collect_keys_of_services(side: FamilyView, services: Iterable[Service]) -> set[Any]:
    rendered = [side.rendered[service.name] for service in services if service.name in side.rendered]
    return {key for each in rendered for part in (each.own, each.shared) for key in part}


def write_script(side: FamilyView, delta: Delta[Any, Any]) -> list[str]:
    """Write a difference as the mode's tool reads it, or in words if there is no such tool."""
    if side.explainer is not None:
        return list(side.explainer.write_script(delta))
    describe = side.mode.describe if side.mode is not None else str
    words = (("add", delta.added), ("change", delta.changed), ("delete", delta.removed))
    return [f"{verb} {describe(key)}" for verb, keys in words for key in keys]


def write_script_lines(family: Document) -> Iterator[str]:
    """Write one family as its tool reads it: every line that is not a command is a comment."""
    if family.get("reason"):
        yield from _write_comment(f"{family['family']}: {family['reason']}")
    if family["script"] and family["tool"]:
        yield from _write_comment(f"{family['family']}, for {family['tool']}")
    yield from family["script"]


def _write_comment(text: str) -> Iterator[str]:
    yield from (f"# {line}" for line in text.splitlines())


def choose_diff_exit_status(document: Document) -> int:
    """Return the exit status: 0 without changes, 1 with changes, 2 if unknown."""
    if any(family["state"] == "unknown" for family in document["families"]):
        return 2
    return int(any(family["script"] for family in document["families"]))
