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
    return any(
        _grant_allows(grant, source, group, kind, target.name) for grant in world.list_grants(target.namespace)
    )


def _grant_allows(grant: wire.GrantSpec, source: Item, group: str, kind: str, name: str) -> bool:
    asked = (wire.GROUP, source.kind.value, source.name.namespace)
    return any((each.group, each.kind, each.namespace) == asked for each in grant.from_) and any(
        (each.group, each.kind) == (group, kind) and each.name in (None, "", name) for each in grant.to
    )


def allows_namespace(
    wanted: wire.FromNamespaces, own: str, namespace: str, world: GatewayWorld, default: str
) -> bool:
    """Report whether `from` of a listener in the namespace `own` allows objects of `namespace`."""
    match wanted.from_ or default:
        case "All":
            return True
        case "Same":
            return namespace == own
        case "Selector":
            has = {_NAME_LABEL: namespace, **world.find_labels(namespace)}
            return wanted.selector is not None and matches_labels(wanted.selector, has)
        case _:
            return False


def matches_labels(selector: wire.Selector, labels: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _matches_requirement(each, labels) for each in selector.match_expressions
    )


def _matches_requirement(of: wire.SelectorRequirement, labels: Mapping[str, str]) -> bool:
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
