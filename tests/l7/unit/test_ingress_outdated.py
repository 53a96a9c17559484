"""Time alone changes a plan where a certificate ends, an address may have come free, or this machine has another."""

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any, cast

import pytest
from tests.l7.plans import listed
from tests.l7.unit.test_gateway_deploy import filled

from vipwire.model.names import ObjectName
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.plan.planner import GatewayPlanner
from vipwire_l7.haproxy.configuration import Configuration
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.ingress.plan.planner import IngressPlanner
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.controller import Controller
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.run.desired import Desired
from vipwire_l7.watch.objects import Ingress, Secret, Tls
from vipwire_l7.watch.snapshot import ChangeExtent, Snapshot

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
YEAR, DAY = 366 * 86400.0, 86400.0
LAYOUT = Layout("/run/x", "/run/x/s")
EVERYTHING = ChangeExtent(structure=True)


def with_certificate() -> Snapshot:
    """Give an Ingress with a certificate for ten years."""
    name = ObjectName("default", "web")
    pem, mark, key = make_certificate(NOW, "a.org").partition("-----BEGIN PRIVATE KEY-----")
    secret = Secret(name, "kubernetes.io/tls", {"tls.crt": pem.encode(), "tls.key": (mark + key).encode()})
    ingress = Ingress(name, "vipwire", tls=(Tls(("a.org",), name),))
    return listed((ingress, secret))


def test_a_plan_follows_the_clock_when_a_certificate_begins_or_ends() -> None:
    desired, now = Desired(with_certificate(), IngressPlanner(Setting()), LAYOUT, "PEM\n"), NOW.timestamp()
    desired.update(EVERYTHING, now - DAY)
    times = (now - DAY / 2, now, now + 9 * YEAR, now + 10 * YEAR, now + 11 * YEAR)
    assert [bool(desired.update(ChangeExtent(), each)) for each in times] == [False, True, False, True, False]


def test_an_address_that_cannot_be_had_is_tried_again() -> None:
    desired = Desired(filled(), GatewayPlanner(GatewaySetting()), LAYOUT, "PEM\n")
    desired.update(EVERYTHING, 0.0)
    every = desired.plan.frontends
    assert desired.exclude_frontend(every[0].name)
    assert (desired.retries, desired.plan.frontends) == (True, every[1:])
    desired.update(EVERYTHING, 60.0)
    assert (desired.retries, desired.plan.frontends) == (False, every)


def test_a_plan_follows_this_machine_where_it_is_reached_elsewhere() -> None:
    addresses = ["192.0.2.1"]
    planner = GatewayPlanner(GatewaySetting(), lambda: tuple(addresses))
    desired = Desired(filled(), planner, LAYOUT, "PEM\n")
    desired.update(EVERYTHING, 0.0)
    planner.take_changed_statuses()
    desired.update(ChangeExtent(), 60.0)
    assert not planner.take_changed_statuses()
    addresses[0] = "192.0.2.2"
    desired.update(ChangeExtent(), 60.0)
    assert planner.take_changed_statuses()


class Taking:
    """A HAProxy that takes everything."""

    running, socket = True, Path("/run/x/s")

    async def adopt_master(self) -> bool:
        return False

    async def count_old_workers(self) -> int:
        return 0

    def get_next_folder(self) -> Path:
        return Path("/run/x/gen-1")

    async def apply_configuration(self, configuration: Configuration) -> None:
        assert configuration.layout.folder == "/run/x/gen-1"


class Failing(IngressPlanner):
    """A planner that fails the first time."""

    has_failed = False

    def update(self, *given: Any) -> Any:
        if not self.has_failed:
            self.has_failed = True
            raise ZeroDivisionError
        return super().update(*given)


class Counting(IngressPlanner):
    """A planner that counts how often it is asked."""

    asked = 0

    def update(self, *given: Any) -> None:
        self.asked += 1
        super().update(*given)


def controller_of(planner: IngressPlanner) -> Controller:
    snapshot = with_certificate()
    desired = Desired(snapshot, planner, LAYOUT, "PEM\n")
    return Controller(snapshot, desired, cast("Any", Taking()), lambda _: None)


async def test_what_had_changed_before_a_failure_is_planned_when_the_controller_runs_again() -> None:
    planner = Failing(Setting())
    controller = controller_of(planner)
    with pytest.raises(ZeroDivisionError):
        await controller.run()
    assert not controller.desired.plan.certificates
    task = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(60):
        await controller.updated.wait()
    assert controller.desired.plan.certificates
    task.cancel()


async def test_nothing_is_planned_again_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vipwire_l7.run.controller._LOOK", 0.0)

    planner = Counting(Setting())
    controller = controller_of(planner)
    task = asyncio.ensure_future(controller.run())
    async with asyncio.timeout(60):
        while planner.asked < 5:  # noqa: ASYNC110  # of a look nobody is told
            await asyncio.sleep(0)
        plan = controller.desired.plan
        while planner.asked < 10:  # noqa: ASYNC110  # nor of this one
            await asyncio.sleep(0)
    assert controller.desired.plan is plan, "it was not written down again"
    task.cancel()
