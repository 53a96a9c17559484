"""Finds the Services that have an endpoint at a place, for modes that connect sockets to endpoints directly."""

from collections.abc import Iterable
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.plan.plan import FrontendKey, ServicePlan, endpoint_places

_NONE: Final[frozenset[ObjectName]] = frozenset()


class LeadingServices:
    """The Services with an endpoint at each place. A change costs time proportional to its Service."""

    def __init__(self) -> None:
        self._at: dict[FrontendKey, frozenset[ObjectName]] = {}

    def replace(self, name: ObjectName, old: ServicePlan | None, new: ServicePlan | None) -> None:
        before, after = (set(endpoint_places(plan)) if plan is not None else set() for plan in (old, new))
        alone = frozenset((name,))  # one set for all endpoints saves memory
        for place in before - after:
            if rest := self._at[place] - alone:
                self._at[place] = rest
            else:
                del self._at[place]
        for place in after - before:
            others = self._at.get(place)
            self._at[place] = alone if others is None else others | alone

    def leading_to(self, places: Iterable[FrontendKey]) -> set[ObjectName]:
        return set().union(*(self._at.get(place, _NONE) for place in places)) if self._at else set()
