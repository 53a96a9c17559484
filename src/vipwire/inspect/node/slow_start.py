"""Works out from the kernel how far endpoints with slow start have grown; only the running proxy knows it.

Takes the shares in the kernel's objects for weights. If the mode renders those weights to the objects that the kernel
holds, they are the current plan; otherwise the difference is drift.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from math import lcm

from vipwire.inspect.node.family_view import FamilyView
from vipwire.model.net import Address, Family, parse_address
from vipwire.model.spread import Algorithm, Spread
from vipwire.plan.annotations import read_wishes
from vipwire.plan.plan import Forward, Frontend, ServicePlan
from vipwire.plan.resolve import Packet
from vipwire.plan.slow_start import STEPS
from vipwire.reconcile.backend import Rendered
from vipwire.watched_objects.store import Store

_ELSEWHERE = {Family.IPV4: parse_address("203.0.113.254"), Family.IPV6: parse_address("2001:db8:ffff::fe")}
"""The address of a client that is neither a Pod nor this node."""

Weights = Mapping[tuple[Address, int], int]


def adopt_weights(side: FamilyView, store: Store, own: frozenset[Address]) -> FamilyView:
    """Adopt the kernel's weights of Services with slow start, if these explain the difference."""
    if side.mode is None or side.explainer is None or not side.observed:
        return side
    names = [name for name in side.plans if read_wishes(store.services[name]).slow_start]
    plans, rendered = dict(side.plans), dict(side.rendered)
    for name in names:
        if not side.compute_drift(name):
            continue
        for plan in _list_candidate_plans(side, side.plans[name], own):
            made = side.mode.render(plan)
            if _is_programmed(side, made):
                plans[name], rendered[name] = plan, made
                break
    return replace(side, plans=plans, rendered=rendered)


def _is_programmed(side: FamilyView, rendered: Rendered[object, object]) -> bool:
    observed = side.observed or {}
    both = (rendered.own.items(), rendered.shared.items())
    return all(observed.get(key) == value for objects in both for key, value in objects)


def _list_candidate_plans(side: FamilyView, plan: ServicePlan, own: frozenset[Address]) -> Iterator[ServicePlan]:
    """Build the plans with the kernel's shares. Weights are known except for a common factor."""
    dealt = [[_compute_weights(side, each, own, local=local) for local in (False, True)] for each in plan.frontends]
    for factor in range(1, STEPS + 1):
        pairs = zip(plan.frontends, dealt, strict=True)
        yield replace(
            plan, frontends=tuple(_reweigh_frontend(each, far, near, factor) for each, (far, near) in pairs)
        )


def _reweigh_frontend(frontend: Frontend, far: Weights, near: Weights, factor: int) -> Frontend:
    action, short = frontend.action, frontend.short_circuit
    return replace(
        frontend,
        action=_reweigh_forward(action, far, factor) if isinstance(action, Forward) else action,
        short_circuit=_reweigh_forward(short, near, factor) if short is not None else None,
    )


def _reweigh_forward(forward: Forward, weights: Weights, factor: int) -> Forward:
    found = tuple(weights.get((target.address, target.port), 0) * factor for target in forward.pool)
    if not all(found):
        return forward
    return replace(forward, spread=Spread(forward.spread.algorithm, found if len(set(found)) > 1 else ()))


def _compute_weights(side: FamilyView, frontend: Frontend, own: frozenset[Address], *, local: bool) -> Weights:
    """Compute the kernel's weights for clients elsewhere, or on this node (`local`); empty without endpoints."""
    forward = frontend.short_circuit if local else frontend.action
    if not isinstance(forward, Forward) or side.explainer is None or side.observed is None:
        return {}
    packet = _build_packet(side, frontend, local=local)
    if packet is None:
        return {}
    shares = side.explainer.walk(side.observed, side.wanted, packet, own).shares or {}
    dealt = {target: share for target, share in shares.items() if target is not None}
    if forward.spread.algorithm is Algorithm.MAGLEV:
        return _find_steps(forward, dealt)
    whole = lcm(*(share.denominator for share in dealt.values())) if dealt else 1
    return {target: int(share * whole) for target, share in dealt.items()}


def _find_steps(forward: Forward, dealt: Mapping[tuple[Address, int], Fraction]) -> Weights:
    """Find the slow-start steps of the shares in a table, which are rounded; one endpoint is fully grown."""
    full = zip(forward.pool, forward.weights, strict=True)
    known = {(target.address, target.port): weight for target, weight in full}
    ratios = {target: share / known[target] for target, share in dealt.items() if target in known}
    most = max(ratios.values(), default=Fraction(1))
    return {target: known[target] * round(ratio / most * STEPS) for target, ratio in ratios.items()}


def _build_packet(side: FamilyView, frontend: Frontend, *, local: bool) -> Packet | None:
    """Build a packet to a frontend from this node (`local`), or from elsewhere; None if there is none."""
    key, here = frontend.key, side.node.address
    destination = key.address or here
    sources = frontend.allowed_sources
    allowed: Iterable[Address] = (Address(prefix.network) for prefix in sources or ())
    source = here if local else _ELSEWHERE[side.family] if sources is None else next(iter(allowed), None)
    if source is None or destination is None:
        return None
    to_node = key.address is None or destination == here
    return Packet(source, destination, key.protocol, key.port, from_node=local, to_node=to_node)
