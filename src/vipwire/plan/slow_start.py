"""Slow start: the weight of an endpoint that joins a pool grows from a tenth to all. Pure.

    vipwire.io/slow-start: 30s      a tenth of its weight at once, two after 6 s, then one more every 3 s

A new process fills its caches first, and a scheduler that counts connections would send it every new one. The share
is a weight of the plan, so every mode with weights supports it. New are endpoints that this process saw arrive, also
after an absence. Endpoints of a Service's first planning (at start, or with the annotation) get full weight, because
their age is unknown. `now` is the caller's monotonic clock in seconds; `due` says when to ask again.
"""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import Struct, field

from vipwire.model.names import ObjectName
from vipwire.model.net import Address
from vipwire.model.spread import Spread
from vipwire.plan.plan import Forward, Frontend, ServicePlan

STEPS: Final = 10
"""A weight grows in this many equal steps."""

_ROUNDING = 1e-6
_ALWAYS = float("-inf")


class SlowStart(Struct):
    """Since when each endpoint is in a pool, for Services with slow start, and when the next step is due.

    `_order` is a heap of steps, so asking costs the same however many Services grow; outdated steps stay until their
    time.
    """

    _since: dict[ObjectName, dict[Address, float]] = field(default_factory=dict)
    _steps: dict[ObjectName, float] = field(default_factory=dict)
    _order: list[tuple[float, ObjectName]] = field(default_factory=list)

    def due(self) -> float | None:
        """Return when the next weight grows; None if none does."""
        while self._order and self._steps.get(self._order[0][1]) != self._order[0][0]:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None

    def take_due(self, now: float) -> tuple[ObjectName, ...]:
        """Return the Services with a weight that grows now; the caller must `lower_weights` of each."""
        found: list[ObjectName] = []
        while (at := self.due()) is not None and at <= now:
            found.append(heapq.heappop(self._order)[1])
            del self._steps[found[-1]]
        return tuple(found)

    def forget(self, name: ObjectName) -> None:
        self._since.pop(name, None)
        self._steps.pop(name, None)

    def lower_weights(self, plan: ServicePlan, seconds: float, now: float) -> ServicePlan:
        """Lower the weights of endpoints that joined the plan's pools less than `seconds` ago."""
        known = self._since.get(plan.name)
        present = {target.address for forward in _list_forwards(plan) for target in forward.pool}
        since = {address: _ALWAYS if known is None else known.get(address, now) for address in present}
        self._since[plan.name] = since
        young = {address: (now - at) * STEPS / seconds for address, at in since.items() if now - at < seconds}
        shares = {address: share for address, steps in young.items() if (share := _compute_share(steps)) < STEPS}
        if not shares:
            self._steps.pop(plan.name, None)
            return plan
        at = min(since[each] + (share + 1) * seconds / STEPS for each, share in shares.items())
        if self._steps.get(plan.name) != at:
            self._steps[plan.name] = at
            heapq.heappush(self._order, (at, plan.name))
        return replace(
            plan,
            frontends=tuple(_scale_frontend(frontend, shares) for frontend in plan.frontends),
            ranges=tuple(replace(each, frontend=_scale_frontend(each.frontend, shares)) for each in plan.ranges),
        )


def _compute_share(steps: float) -> int:
    """Return an endpoint's tenths of its weight; a step that is due now counts in spite of rounding."""
    return max(1, int(steps + _ROUNDING))


def _list_forwards(plan: ServicePlan) -> Iterator[Forward]:
    for frontend in (*plan.frontends, *(each.frontend for each in plan.ranges)):
        for action in (frontend.action, frontend.short_circuit):
            if isinstance(action, Forward):
                yield action


def _scale_frontend(frontend: Frontend, shares: Mapping[Address, int]) -> Frontend:
    action, short_circuit = frontend.action, frontend.short_circuit
    return replace(
        frontend,
        action=_scale_weights(action, shares) if isinstance(action, Forward) else action,
        short_circuit=None if short_circuit is None else _scale_weights(short_circuit, shares),
    )


def _scale_weights(forward: Forward, shares: Mapping[Address, int]) -> Forward:
    """Give each target so many tenths of its weight; without weights if all are equal."""
    pool = forward.pool
    full = zip(pool, forward.weights, strict=True)
    weights = tuple(weight * shares.get(target.address, STEPS) for target, weight in full)
    return replace(forward, spread=Spread(forward.spread.algorithm, weights if len(set(weights)) > 1 else ()))
