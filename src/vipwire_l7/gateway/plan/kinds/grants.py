"""Decides which references into another namespace are allowed, and which namespaces a listener allows. Pure."""

from collections.abc import Mapping

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewayWorld, Item
from vipwire_l7.gateway.watch import wire

_NAME_LABEL = "kubernetes.io/metadata.name"


def may_refer(world: GatewayWorld, source: Item, group: str, kind: str, target: ObjectName) -> bool:
    """Report whether an object may refer to a target: in its namespace, or by a ReferenceGrant in the target's."""
    if source.name.namespace == target.namespace:
        return True
    return any(_allows(grant, source, group, kind, target.name) for grant in world.grants(target.namespace))


def _allows(grant: wire.GrantSpec, source: Item, group: str, kind: str, name: str) -> bool:
    asked = (wire.GROUP, source.kind.value, source.name.namespace)
    return any((each.group, each.kind, each.namespace) == asked for each in grant.from_) and any(
        (each.group, each.kind) == (group, kind) and each.name in (None, "", name) for each in grant.to
    )


def admits(wanted: wire.FromNamespaces, own: str, namespace: str, world: GatewayWorld, default: str) -> bool:
    """Report whether `from` of a listener in the namespace `own` allows objects of `namespace`."""
    match wanted.from_ or default:
        case "All":
            return True
        case "Same":
            return namespace == own
        case "Selector":
            has = {_NAME_LABEL: namespace, **world.labels(namespace)}
            return wanted.selector is not None and selects(wanted.selector, has)
        case _:
            return False


def selects(selector: wire.Selector, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _holds(each, labels) for each in selector.match_expressions
    )


def _holds(of: wire.SelectorRequirement, labels: Mapping[str, str]) -> bool:
    match of.operator:
        case "In":
            return labels.get(of.key) in of.values
        case "NotIn":
            return labels.get(of.key) not in of.values
        case "Exists":
            return of.key in labels
        case "DoesNotExist":
            return of.key not in labels
        case _:
            return False
