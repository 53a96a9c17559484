"""Keeping plans up to date, and who holds what several Services claim."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.fakes.values import endpoint, ip, ips, key, named, node_plan, port, service, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Protocol
from vipwire.model.service import EndpointSlice, Service
from vipwire.plan.claims import Claimant, Claims
from vipwire.plan.plan import FrontendKey
from vipwire.plan.planner import PlanChange, Planner


class Cluster:
    """A dictionary of objects that a planner looks at; counts how often."""

    def __init__(self, *services: Service) -> None:
        self.services = {subject.name: subject for subject in services}
        self.slices: dict[ObjectName, list[EndpointSlice]] = {}
        self.looks: Counter[ObjectName] = Counter()

    def view(self, name: ObjectName) -> tuple[Service | None, Sequence[EndpointSlice]]:
        self.looks[name] += 1
        return self.services.get(name), self.slices.get(name, [])

    def put(self, *services: Service) -> list[ObjectName]:
        self.services.update((subject.name, subject) for subject in services)
        return [subject.name for subject in services]

    def remove(self, name: str) -> list[ObjectName]:
        del self.services[named(name)]
        return [named(name)]


def start(*services: Service) -> tuple[Cluster, Planner]:
    cluster, planner = Cluster(*services), Planner(node_plan())
    planner.update(list(cluster.services), cluster.view)
    return cluster, planner


def holders(planner: Planner, address: str) -> dict[str, list[str]]:
    """Tell who has a frontend with an address, and who has lost one."""
    packed = ip(address)
    return {
        "has": sorted(
            str(p.name) for p in planner.plans.values() if any(f.key.address == packed for f in p.frontends)
        ),
        "lost": sorted(str(p.name) for p in planner.plans.values() if any(k.address == packed for k, _ in p.lost)),
    }


def asking(name: str, cluster_ip: str, created: float = 1.0, external: str = "1.1.1.1", **fields: Any) -> Service:
    return service(name, cluster_ip, created=created, external_ips=ips(external), **fields)


def test_names_decide_between_equally_old_services() -> None:
    _, planner = start(asking("b", "10.96.0.2"), asking("a", "10.96.0.1"), asking("c", "10.96.0.3"))
    assert holders(planner, "1.1.1.1") == {"has": ["default/a"], "lost": ["default/b", "default/c"]}


def test_a_service_made_anew_under_its_name_is_young_again() -> None:
    cluster, planner = start(asking("a", "10.96.0.1", 1.0), asking("b", "10.96.0.2", 2.0))
    changes = planner.update(cluster.put(asking("a", "10.96.0.1", 3.0)), cluster.view)
    assert set(changes) == {named("a"), named("b")}
    assert holders(planner, "1.1.1.1") == {"has": ["default/b"], "lost": ["default/a"]}


def test_a_node_port_is_contested_where_somebody_claims_its_address_and_port() -> None:
    """Whoever comes or goes is planned with the one that has the node port, and nobody else is looked at."""
    cluster = Cluster(
        service("web", "10.96.0.1", port(80, node_port=30080)),
        service("other", "10.96.0.9", port(80, node_port=30081)),
    )
    planner = Planner(node_plan(addresses=ips("192.168.0.1", "192.168.0.2")))
    planner.update(list(cluster.services), cluster.view)
    before = planner.plans[named("web")]
    assert before.node_port_addresses == ips("192.168.0.1", "192.168.0.2")
    assert before.contested == ()
    away = service("away", "10.96.0.3", port(30080), external_ips=ips("1.1.1.1"))
    cluster.looks.clear()
    planner.update(cluster.put(away), cluster.view)
    assert set(cluster.looks) == {named("away")}
    outer = service("outer", "10.96.0.2", port(30080), external_ips=ips("192.168.0.2"))
    cluster.looks.clear()
    assert set(planner.update(cluster.put(outer), cluster.view)) == {named("web"), named("outer")}
    assert set(cluster.looks) == {named("web"), named("outer")}
    assert planner.plans[named("web")].contested == (key("192.168.0.2", 30080),)
    assert set(planner.update(cluster.remove("outer"), cluster.view)) == {named("web"), named("outer")}
    assert planner.plans[named("web")] == before


def test_a_node_port_is_contested_where_somebody_claims_a_range_of_ports_around_it() -> None:
    """Its source ranges would be asked before the node port is."""
    cluster = Cluster(service("web", "10.96.0.1", port(80, node_port=30080)))
    planner = Planner(node_plan(addresses=ips("192.168.0.1", "192.168.0.2"), port_ranges=True))
    planner.update(list(cluster.services), cluster.view)
    for first, contested in ((30080, True), (30081, False), (30079, True)):
        wide = service(
            "wide",
            "10.96.0.2",
            port(30081),
            external_ips=ips("192.168.0.2"),
            annotations=(("vipwire.io/port-range", f"{first}-30082"),),
        )
        planner.update(cluster.put(wide), cluster.view)
        places = (key("192.168.0.2", 30080),) if contested else ()
        assert planner.plans[named("web")].contested == places
    cluster.looks.clear()
    planner.update(cluster.put(replace(wide, name=named("away"), external_ips=ips("1.1.1.1"))), cluster.view)
    assert named("web") not in cluster.looks  # no address of the node


_RANGE = (("vipwire.io/port-range", "8000-9000"),)


@pytest.mark.parametrize(
    ("at", "rival"),
    [
        ("10.1.0.1", service("rival", "10.96.0.9", port(8080), external_ips=ips("10.1.0.1"))),
        ("10.1.0.1", service("rival", "10.1.0.1", port(8080))),
        ("10.1.0.1", service("rival", "10.96.0.9", port(8001), external_ips=ips("10.1.0.1"), annotations=_RANGE)),
        ("192.168.0.2", service("rival", "10.96.0.9", port(80, node_port=8080))),
    ],
    ids=["external IP", "ClusterIP", "range", "node port"],
)
def test_an_endpoint_is_contested_where_some_service_claims_its_place(at: str, rival: Service) -> None:
    """Of all others, only the Services that lead there are planned with the one that claims it."""
    names = [named(name) for name in ("web", "twin", "away")]
    cluster = Cluster(*(service(name.name, f"10.96.0.{number}") for number, name in enumerate(names, 1)))
    for name, address in zip(names, (at, at, "10.1.0.2"), strict=True):
        cluster.slices[name] = [slice_of(name.name, endpoint(address))]
    planner = Planner(node_plan(addresses=ips("192.168.0.2"), direct=True, port_ranges=True))
    planner.update(names, cluster.view)
    before = planner.plans[names[0]]
    assert set(planner.update(cluster.put(rival), cluster.view)) == {rival.name, *names[:2]}
    assert all(planner.plans[name].contested == (key(at, 8080),) for name in names[:2])
    cluster.slices[names[2]] = [slice_of("away", endpoint(at))]
    planner.update(names[2:], cluster.view, themselves={names[2]: False})
    assert planner.plans[names[2]].contested
    assert set(planner.update(cluster.remove("rival"), cluster.view)) == {rival.name, *names}
    assert planner.plans[names[0]] == before


@pytest.mark.parametrize("number", [80, 81])
@pytest.mark.parametrize("field", ["external_ips", "load_balancer_ips"])
def test_no_one_takes_a_port_of_another_services_cluster_ip_however_old_he_is(field: str, number: int) -> None:
    thief: dict[str, Any] = {field: ips("10.96.0.1"), "created": 1.0}
    _, planner = start(service("owner", created=9.0), service("thief", "10.96.0.2", port(number), **thief))
    assert holders(planner, "10.96.0.1") == {"has": ["default/owner"], "lost": ["default/thief"]}
    assert planner.plans[named("owner")].cluster_ips == ips("10.96.0.1")
    assert planner.plans[named("thief")].cluster_ips == ips("10.96.0.2")


def test_of_two_services_with_one_cluster_ip_the_older_has_it_whole() -> None:
    cluster, planner = start(service("old", created=1.0), service("young", "10.96.0.1", port(81), created=2.0))
    assert planner.plans[named("young")].cluster_ips == ()
    assert planner.plans[named("young")].frontends == ()
    assert planner.plans[named("young")].lost == ((key("10.96.0.1", 81), named("old")),)
    planner.update(cluster.remove("old"), cluster.view)
    assert planner.plans[named("young")].cluster_ips == ips("10.96.0.1")


def test_only_plans_that_are_other_ones_are_reported_with_what_they_were() -> None:
    cluster, planner = start(service("web"))
    assert planner.update([named("web"), named("never")], cluster.view) == {}
    before = planner.plans[named("web")]
    cluster.slices[named("web")] = [slice_of("web", endpoint("10.1.0.1"))]
    changes = planner.update([named("web")], cluster.view)
    assert changes == {named("web"): PlanChange(before, planner.plans[named("web")])}
    assert changes[named("web")].new != before


def test_a_change_looks_at_its_service_and_its_rivals_only() -> None:
    others = [service(f"other-{n}", f"10.97.{n // 256}.{n % 256}") for n in range(2000)]
    cluster, planner = start(*others, asking("old", "10.96.0.1", 1.0), asking("young", "10.96.0.2", 2.0))
    cluster.looks.clear()
    planner.update(cluster.put(service("other-7", "10.97.0.7", port(81))), cluster.view)
    assert set(cluster.looks) == {named("other-7")}
    cluster.looks.clear()
    planner.update(cluster.put(asking("old", "10.96.0.1", 3.0)), cluster.view)
    assert set(cluster.looks) == {named("old"), named("young")}


def test_a_change_of_endpoints_does_not_look_at_rivals() -> None:
    cluster, planner = start(asking("old", "10.96.0.1", 1.0), asking("young", "10.96.0.2", 2.0))
    cluster.slices[named("old")] = [slice_of("old", endpoint("10.1.0.1"))]
    cluster.looks.clear()
    planner.update([named("old")], cluster.view)
    assert set(cluster.looks) == {named("old")}


def test_many_services_on_one_external_ip_do_not_look_at_each_other() -> None:
    sharing = [
        service(f"s{n}", f"10.96.1.{n}", port(1000 + n), external_ips=ips("1.1.1.1"), created=float(n))
        for n in range(200)
    ]
    cluster, planner = start(*sharing)
    cluster.looks.clear()
    planner.update(cluster.remove("s0"), cluster.view)
    assert set(cluster.looks) == {named("s0")}


def test_a_service_that_cannot_be_planned_keeps_its_plan_and_all_others_are_planned() -> None:
    cluster, planner = start(service("web", "10.96.0.1"), service("db", "10.96.0.2"))
    before = planner.plans[named("web")]
    cluster.slices[named("web")] = [None]  # type: ignore[list-item]  # what no source gives
    cluster.slices[named("new")] = [None]  # type: ignore[list-item]
    names = cluster.put(service("web", "10.96.0.9"), service("new", "10.96.0.4"), service("db", "10.96.0.3"))
    changed = planner.update(names, cluster.view)
    assert named("db") in changed
    kept = planner.plans[named("web")]
    assert kept.frontends == before.frontends
    assert "cannot be planned (AttributeError: " in kept.problems[0].message
    assert planner.plans[named("new")].frontends == ()
    cluster.slices.clear()
    planner.update(names, cluster.view)
    assert [plan.problems for plan in planner.plans.values()] == [(), (), ()]


SHARED = ip("198.51.100.1")


class Age(float):
    """A time of creation that counts how often such times are compared."""

    __slots__ = ()
    compared: ClassVar = 0

    def __eq__(self, other: object) -> bool:
        Age.compared += 1
        return super().__eq__(other)

    def __lt__(self, other: float) -> bool:
        Age.compared += 1
        return super().__lt__(other)

    __hash__ = float.__hash__


def one_more(services: int) -> int:
    """Have so many Services share an external IP; count what one more takes to come and to go."""
    claims = Claims()
    for number in range(services):
        claimant = Claimant(Age(number), named(f"service-{number}"))
        claims.replace(claimant, [FrontendKey(SHARED, Protocol.TCP, number + 1)], ())
    before, web = Age.compared, Claimant(Age(services / 2), named("web"))
    key = FrontendKey(SHARED, Protocol.TCP, 60_000)
    assert claims.replace(web, [key], ()) == set()
    assert claims.find_holder(web.name, key) is None
    assert claims.remove(web.name) == set()
    return Age.compared - before


def test_one_more_service_at_a_shared_address_is_compared_with_hardly_any_other() -> None:
    assert one_more(2_000) <= 5 * one_more(10)
