"""The conditions that say what delays a namespace's end, as `kubectl describe namespace` shows them. Pure.

In the words of Kubernetes' namespace controller (pkg/controller/namespace/deletion, status_condition_utils.go).
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from vipwire_up.api.objects.resource import Object
from vipwire_up.store.record import Key

_CONTENT = "NamespaceContentRemaining", "SomeResourcesRemain"
_FINALIZERS = "NamespaceFinalizersRemaining", "SomeFinalizersRemain"


def with_conditions(namespace: Object, left: Sequence[tuple[Key, Object]], now: str) -> Object:
    """Add conditions that say what is left in a namespace; an unchanged one keeps its time."""
    status = namespace.get("status") or {}
    before = {entry.get("type"): entry for entry in status.get("conditions") or ()}
    told = dict(before)
    for condition in _conditions(left):
        known = before.get(condition["type"]) or {}
        if any(known.get(name) != text for name, text in condition.items()):
            told[condition["type"]] = condition | {"lastTransitionTime": now}
    return namespace | {"status": status | {"conditions": list(told.values())}}


def _conditions(left: Sequence[tuple[Key, Object]]) -> Iterable[Object]:
    kinds = Counter(key.resource for key, _ in left)
    parts = [f"{name}{'' if '.' in name else '.'} has {count} resource instances" for name, count in kinds.items()]
    yield _condition(*_CONTENT, f"Some resources are remaining: {', '.join(sorted(parts))}")
    holds = Counter(name for _, value in left for name in value["metadata"].get("finalizers") or ())
    parts = [f"{name} in {count} resource instances" for name, count in holds.items()]
    if parts:
        why = f"Some content in the namespace has finalizers remaining: {', '.join(sorted(parts))}"
        yield _condition(*_FINALIZERS, why)


def _condition(kind: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True", "reason": reason, "message": message}
