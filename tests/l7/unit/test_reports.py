"""vipwire reports problems and accepted Ingresses by change; the sum of the changes is the whole."""

import random
from collections.abc import Hashable
from typing import Any, cast

import pytest
from tests.l7.plans import listed
from tests.l7.unit.test_gateway_following import NOW, SETTINGS, VARIANTS, event
from tests.l7.unit.test_ingress_outdated import LAYOUT
from tests.l7.unit.test_planning_histories import change

from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.gateway.run.shared_planner import SharedPlanner
from vipwire_l7.gateway.watch.kinds import WITH_INGRESS
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.desired import Desired, ProblemChange
from vipwire_l7.run.rates import Rate
from vipwire_l7.run.reporter import IngressReporter
from vipwire_l7.watch.snapshot import Snapshot


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_changes_of_problems_and_ingresses_add_up(seed: int) -> None:
    draw, snapshot = random.Random(seed), listed(kinds=WITH_INGRESS)  # noqa: S311  # no secret
    gateways, absent = draw.choice([*SETTINGS.values()])
    planner = SharedPlanner(IngressPlanner(Setting()), GatewayPlanner(gateways))
    desired = Desired(snapshot, planner, LAYOUT, "PEM\n")
    for key in VARIANTS.keys() - set(absent):
        snapshot.apply(event(key, 0))
    problems: dict[Hashable, tuple[Problem, ...]] = {}
    ours = set[ObjectName]()
    for _ in range(12):
        for _ in range(draw.randrange(3)):
            snapshot.apply(change(draw))
        desired.update(snapshot.take_touched(), NOW.timestamp())
        if desired.plan.pools and draw.random() < 0.3:
            desired.exclude_pool(draw.choice(desired.plan.pools).name, "is broken")
        judged = desired.take_changed_problems()
        problems |= judged.problems
        ours = (ours | judged.admitted.keys()) - {name for name, is_ours in judged.admitted.items() if not is_ours}
        assert {each for found in problems.values() for each in found} == set(desired.problems)
        assert ours == set(planner.kept.admitted)
        assert desired.take_changed_problems() == ProblemChange()


def test_a_problem_of_two_origins_is_gone_when_both_have_none() -> None:
    reporter = IngressReporter(Snapshot(), None, Rate(60))
    problem = Problem("Ingress", ObjectName("default", "web"), "spec", "is wrong")

    def count() -> float | None:
        return reporter.registry.get_sample_value("vipwire_ingress_problems", {"kind": "Ingress"})

    counts = list[float | None]()
    for found in ({"object": (problem,)}, {"plan": (problem, problem)}, {"object": ()}, {"plan": ()}):
        reporter.report_problems(ProblemChange(cast("Any", found)))
        counts.append(count())
    assert counts == [1, 1, 1, 0]
