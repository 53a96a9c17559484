"""Our own kinds that are attached to objects of the Gateway API: here they are there from the start, at v1."""

from datetime import datetime
from typing import Final

from vipwire_up.api.kinds.policy_types import GROUP, POLICY_TYPES
from vipwire_up.api.kinds.rules.policies import check_policy
from vipwire_up.api.objects.cells import AGE, NAME, at
from vipwire_up.api.objects.resource import Column, Object, Resource


def _targets(value: Object, _now: datetime) -> str:
    found = at(value, "spec", "targetRefs") or ()
    return ",".join(f"{each.get('kind')}/{each.get('name')}" for each in found)


def _kind(kind: str, plural: str, short_name: str) -> Resource:
    return Resource(
        kind=kind,
        plural=plural,
        type=POLICY_TYPES[kind],
        group=GROUP,
        short_names=(short_name,),
        categories=("gateway-api",),
        has_status=True,
        counts_generations=True,
        check=check_policy,
        columns=(NAME, Column("Targets", _targets), AGE),
    )


POLICY_RESOURCES: Final = (
    _kind("TrafficPolicy", "trafficpolicies", "tpolicy"),
    _kind("BackendPolicy", "backendpolicies", "bpolicy"),
)
