"""A plan that follows random changes equals a new plan, statuses included, for Ingresses, Gateways and both together.

`histories(range(10_000))` draws more of them than the tests do: each seed is one history.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from tests.l7.plans import listed
from tests.l7.unit.test_gateway_following import NOW, SETTINGS, VARIANTS, event

from vipwire.model.names import ObjectName
from vipwire.watched_objects.event import Deleted, Upserted
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.shared_planner import SharedPlanner
from vipwire_l7.gateway.watch.kinds import WITH_INGRESS
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.limits import MOST, Limited
from vipwire_l7.plan.plan import Setting
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Refusal

pytestmark = pytest.mark.slow

SEEDS = 60
DAY = 86400.0
NAMES, SPACES, HOSTS = ("a", "b", "c"), ("infra", "web"), ("a.org", "x.b.org", "*.b.org", "")
PATHS = (
    ("/", "Prefix"),
    ("/a", "Prefix"),
    ("/a", "Exact"),
    ("/a//b", "Prefix"),
    ("/[a-z]+", "ImplementationSpecific"),
)
NOTES: tuple[dict[str, str], ...] = (
    {},
    {},
    {"share-with": "web"},
    {"canary": "true", "canary-weight": "30"},
    {"use-regex": "true"},
    {"use-regex": "true", "allow-source-range": "192.0.2.0/24"},
    {"auth-type": "basic", "auth-secret": "users"},
    {"affinity": "cookie"},
)


def ingress(draw: random.Random) -> Any:
    def backend() -> Any:
        return {"service": {"name": draw.choice(NAMES), "port": {"number": draw.choice((80, 80, 81))}}}

    rules = []
    for _ in range(draw.randrange(4)):
        path, kind = draw.choice(PATHS)
        paths = [{"path": path, "pathType": kind, "backend": backend()}]
        rules.append({"host": draw.choice(HOSTS), "http": {"paths": paths}})
    spec: Any = {"ingressClassName": draw.choice(("vipwire", "vipwire", "ours", "nginx")), "rules": rules}
    if draw.random() < 0.4:
        spec["tls"] = [{"hosts": draw.sample(HOSTS[:3], draw.randrange(3)), "secretName": "pair"}]
    if draw.random() < 0.2:
        spec["defaultBackend"] = backend()
    notes = {f"vipwire.io/{key}": value for key, value in draw.choice(NOTES).items()}
    meta = {"name": draw.choice(NAMES), "namespace": draw.choice(SPACES), "annotations": notes}
    created = f"2026-01-0{draw.randrange(1, 4)}T00:00:00Z"
    return {"kind": "Ingress", "metadata": meta | {"creationTimestamp": created}, "spec": spec}


def ingress_class(draw: random.Random) -> Any:
    controller = f"vipwire.io/{draw.choice(('ingress', 'other'))}"
    return {"kind": "IngressClass", "metadata": {"name": "ours"}, "spec": {"controller": controller}}


def of_ingress(draw: random.Random) -> Any:
    written = draw.choice((ingress, ingress, ingress, ingress_class))(draw)
    kind, meta = IngressKind(written["kind"]), written["metadata"]
    if draw.random() < 0.25:
        return Deleted(cast("Any", kind), ObjectName(meta.get("namespace", ""), meta["name"]))
    resource = WITH_INGRESS[kind]
    made, problems = resource.convert(msgspec.convert(written, resource.type))
    assert made is not None
    return Upserted(made, problems)


def change(draw: random.Random) -> Any:
    if draw.random() < 0.5:
        return of_ingress(draw)
    key = draw.choice([*VARIANTS])
    return event(key, draw.choice([*range(len(VARIANTS[key])), None]))


class Planned:
    """Planners of one kind of setting."""

    def __init__(self, gateways: GatewaySetting, ingresses: Setting) -> None:
        self.gateway, self.ingress = GatewayPlanner(gateways), IngressPlanner(ingresses)
        self.both = SharedPlanner(IngressPlanner(ingresses), GatewayPlanner(gateways))

    def plan(self, *given: Any) -> Iterator[object]:
        """Plan with each planner, and yield all results."""
        for planner in (self.gateway, self.ingress, self.both):
            planner.update(*given)
            kept = planner.kept
            yield (
                kept.build_site_plan(),
                [*kept.list_problems()],
                {*kept.admitted},
                dict(kept.datagrams),
                {*planner.looked_at},
            )
        yield dict(self.gateway.statuses)
        yield self.gateway.services
        yield set(self.ingress.list_ours())


def play(seed: int) -> None:
    """Play a history of up to ten changes, of which some come together."""
    draw = random.Random(seed)  # noqa: S311  # no secret
    gateways, absent = draw.choice([*SETTINGS.values()])
    limits = {each: draw.choice((0, 1, 2, 5)) if draw.random() < 0.2 else MOST[each] for each in Limited}
    gateways = replace(gateways, limits=limits)
    ingresses = Setting(hosts_apart=draw.random() < 0.3, limits=limits)
    snapshot, followed = listed(kinds=WITH_INGRESS), Planned(gateways, ingresses)
    for key in VARIANTS.keys() - set(absent):
        snapshot.apply(event(key, 0))
    before: Any = {}
    for batch in range(draw.randrange(2, 7)):
        for _ in range(draw.randrange(1, 4) if batch else 0):
            snapshot.apply(change(draw))
        refused = {ObjectName("infra", "a"): Refusal("is refused", whole=draw.random() < 0.5)}
        snapshot.refusals = refused if draw.random() < 0.2 else {}
        taken = frozenset(("gateway:80",)) if draw.random() < 0.1 else frozenset[str]()
        given = snapshot, NOW.timestamp() + draw.choice((0.0, 0.0, 0.0, -DAY, 4000 * DAY)), taken
        now = list(followed.plan(*given))
        assert now == list(Planned(gateways, ingresses).plan(*given)), seed
        statuses: Any = now[-3]
        changed = {ref for ref in before.keys() | statuses.keys() if before.get(ref) != statuses.get(ref)}
        assert changed <= followed.gateway.take_changed_statuses(), seed
        before = statuses


def histories(seeds: Iterable[int]) -> None:
    for seed in seeds:
        play(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, 15))
def test_what_is_followed_is_what_is_planned_anew(first: int) -> None:
    histories(range(first, first + 15))
