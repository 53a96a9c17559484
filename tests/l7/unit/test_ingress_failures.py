"""An Ingress, or a pool, that fails in a way that nobody thought of costs itself only."""

import asyncio
from pathlib import Path

import pytest
from tests.l7.plans import listed
from tests.l7.unit.test_ingress_plan_unit import PORT, WEB, planned, ruled

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family
from vipwire_l7.haproxy import configuration as configuration_module
from vipwire_l7.haproxy.backends import write_backend
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.ingress.plan import planner
from vipwire_l7.ingress.plan.ingress_content import IngressContent, read_ingress
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.sites import CLOSED, Pool
from vipwire_l7.run import process
from vipwire_l7.run.desired import Desired
from vipwire_l7.run.process import Haproxy, Refused
from vipwire_l7.watch.objects import (
    BackendEndpoint,
    BackendService,
    BackendSlice,
    Ingress,
    PathType,
    Usability,
)
from vipwire_l7.watch.snapshot import ChangeExtent

OTHER = ObjectName("default", "other")


def test_an_ingress_that_cannot_be_planned_is_told_of_and_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def explosive(ingress: Ingress, *rest: object) -> IngressContent:
        if ingress.name.name == "boom":
            raise ZeroDivisionError("division by zero")
        return read_ingress(ingress, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "read_ingress", explosive)
    boom, good = ruled("boom", ("/", PathType.PREFIX)), ruled("good", ("/x", PathType.PREFIX))
    plan = planned(boom, good)
    assert [route.owner.name for route in plan.routes] == ["good"]
    (problem,) = plan.problems
    assert (problem.object.name, "ZeroDivisionError" in problem.message) == ("boom", True)


def test_a_pool_that_cannot_be_written_answers_503_and_the_others_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def explosive(pool: Pool, layout: Layout) -> str:
        if pool.service == OTHER:
            raise ValueError("'\\n' cannot stand in a configuration")
        return write_backend(pool, layout)

    monkeypatch.setattr(configuration_module, "write_backend", explosive)
    good = ruled("good", ("/", PathType.PREFIX))
    boom = ruled("boom", ("/boom", PathType.PREFIX))
    rule = boom.rules[0]
    ref = type(rule.backend)(OTHER, 80)
    boom = Ingress(boom.name, "vipwire", (type(rule)(rule.host, rule.path, rule.type, ref, rule.field),))
    snapshot = listed((good, boom, BackendService(WEB, (PORT,)), BackendService(OTHER, (PORT,))))
    desired = Desired(snapshot, IngressPlanner(Setting()), Layout("/run/x", "/run/x/s"), "PEM\n")
    desired.update(ChangeExtent(structure=True), 0.0)
    made = desired.build_configuration("/run/x")
    assert set(made.shape.backends) == {"default:web:80"}
    assert made.maps["prefixes"] == {"a.org/boom/": CLOSED, "a.org/": "default:web:80"}
    assert any("internal error" in str(each) for each in desired.problems if each.object.name == "boom")


def test_haproxy_gets_no_more_servers_than_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its check would accept them, and its reload fail."""
    monkeypatch.setattr(process, "_raise_limit", lambda _pid, _needed: 10)
    endpoints = tuple(BackendEndpoint(Address(bytes((10, 0, 0, each))), Usability.READY) for each in range(12))
    slices = BackendSlice(WEB, WEB, Family.IPV4, {PORT.name: 8080}, endpoints)
    snapshot = listed((ruled("good", ("/", PathType.PREFIX)), BackendService(WEB, (PORT,)), slices))
    desired = Desired(snapshot, IngressPlanner(Setting()), Layout("/run/x", "/run/x/s"), "PEM\n")
    desired.update(ChangeExtent(structure=True), 0.0)
    made = desired.build_configuration(str(tmp_path / "gen-1"))
    with pytest.raises(Refused) as refused:
        asyncio.run(Haproxy("true", tmp_path).apply_configuration(made))
    assert refused.value.excess == made.server_descriptors - 8 == 7
    assert not list(tmp_path.iterdir())
