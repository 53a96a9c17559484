"""Plans Ingresses and Gateways for one HAProxy, and merges both plans. Pure.

The plans share only the pools and certificates of the same Services and Secrets: Ingresses use the operator's
addresses, Gateways use others (`GatewaySetting.reserved`).
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TypeVar

from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.plan.plan import Plan, Planner, Table
from vipwire_l7.plan.sites import Certificate
from vipwire_l7.watch.snapshot import ObjectRef, Snapshot

K = TypeVar("K")
V = TypeVar("V")


class SharedPlanner:
    """Runs both planners. Each ignores the objects of the other."""

    def __init__(self, ingress: Planner, gateway: GatewayPlanner) -> None:
        self._ingress, self._gateway = ingress, gateway
        self.kept = Plan()

    @property
    def zone(self) -> str:
        return self._gateway.zone

    @property
    def looked_at(self) -> Collection[ObjectRef]:
        return {*self._ingress.looked_at, *self._gateway.looked_at}

    def update(self, snapshot: Snapshot, now: float, refused: Collection[str] = ()) -> None:
        for each in (self._ingress, self._gateway):
            each.update(snapshot, now, refused)
        kept, one, other = self.kept, self._ingress.kept, self._gateway.kept
        _merge_tables(kept.hosts, one.hosts, other.hosts)
        _merge_tables(kept.pools, one.pools, other.pools)
        _merge_tables(kept.files, one.files, other.files)
        _merge_tables(kept.frontends, one.frontends, other.frontends)
        _merge_tables(kept.datagrams, one.datagrams, other.datagrams)
        _merge_tables(kept.problems, one.problems, other.problems)
        _merge_tables(kept.admitted, one.admitted, other.admitted)
        _merge_tables(kept.default, one.default, other.default)
        _merge_certificates(kept.certificates, one.certificates, other.certificates)
        kept.frontends.arrange(other.frontends)


def _merge_tables(kept: Table[K, V], one: Table[K, V], other: Table[K, V]) -> None:
    for key in one.take_changed() | other.take_changed():
        kept.put(key, one.get(key, other.get(key)))


def _merge_certificates(
    kept: Table[str, Certificate], one: Table[str, Certificate], other: Table[str, Certificate]
) -> None:
    for key in one.take_changed() | other.take_changed():
        first, second = one.get(key), other.get(key)
        both = replace(first, askers=(*first.askers, *second.askers)) if first and second else first or second
        kept.put(key, both)
