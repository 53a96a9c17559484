"""Two namespaces at one host: what the younger may have of it, and what it may not without being asked in."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from tests.l7.plans import ToldPlan, plan_ingresses
from tests.l7.unit.test_ingress_plan_unit import PORT

from vipwire.model.names import ObjectName
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.sites import Match
from vipwire_l7.run.default_certificate import make_certificate
from vipwire_l7.watch.objects import BackendService, Ingress, PathRule, PathType, Secret, ServiceRef, Tls

SHOP, EVIL = ObjectName("shop", "web"), ObjectName("evil", "web")
CANARY = {"canary": "true", "canary-weight": "100"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def site(of: ObjectName, path: str = "/", *, regex: bool = False, host: str = "a.org", **more: str) -> Ingress:
    """Write an Ingress with one path; the shop's is the older one. Underscores in annotations are dashes."""
    given = MappingProxyType({f"vipwire.io/{name.replace('_', '-')}": value for name, value in more.items()})
    kind = PathType.IMPLEMENTATION_SPECIFIC if regex else PathType.PREFIX
    rule = PathRule(host, path, kind, ServiceRef(of, 80), "spec.rules[0].http.paths[0].backend")
    created = "2020" if of.namespace == "shop" else "2021"
    return Ingress(of, "vipwire", (rule,), annotations=given, created=created)


def planned(*ingresses: Ingress, secrets: tuple[Secret, ...] = (), apart: bool = False) -> ToldPlan:
    services = (BackendService(name, (PORT,)) for name in (SHOP, EVIL))
    return plan_ingresses(*ingresses, *services, *secrets, setting=Setting(hosts_apart=apart), now=NOW.timestamp())


def said(plan: ToldPlan) -> str:
    return "\n".join(str(problem) for problem in plan.problems)


def test_a_canary_of_another_namespace_is_left_out_and_told() -> None:
    evil = site(EVIL, canary="true", canary_weight="100", allow_source_range="203.0.113.0/24")
    plan = planned(site(SHOP, allow_source_range="10.0.0.0/8"), evil)
    assert not plan.choices
    assert [pool.service for pool in plan.pools] == [SHOP]
    assert "Ingress evil/web: spec.rules[0].http.paths[0].path: a canary at a.org, which is shop/web's" in said(plan)
    assert "vipwire.io/share-with: evil" in said(plan)


@pytest.mark.parametrize("shared", ["evil", "other, evil", "*"])
def test_the_owner_lets_it_in_and_its_guards_hold(shared: str) -> None:
    shop = site(
        SHOP, share_with=shared, deny_source_range="192.0.2.0/24", allow_source_range="10.0.0.0/8", limit_rps="5"
    )
    own = site(EVIL, allow_source_range="203.0.113.0/24", deny_source_range="10.9.0.0/16", limit_rps="500")
    part = {f"vipwire.io/{name}": value for name, value in CANARY.items()}
    plan = planned(shop, replace(own, annotations=MappingProxyType({**own.annotations, **part})))
    (choice,) = plan.choices
    policies = {pool.name: pool.policy for pool in plan.pools}
    theirs = policies[choice.targets[0]]
    assert [str(each) for each in theirs.allow] == ["10.0.0.0/8"]
    assert [str(each) for each in theirs.deny] == ["192.0.2.0/24", "10.9.0.0/16"]
    assert theirs.limit
    assert theirs.limit.per_second == 5
    assert not said(plan)


def test_the_sharing_of_somebody_else_opens_nothing() -> None:
    mine = site(EVIL, share_with="evil", path="/evil")
    canary = replace(site(EVIL, canary="true", canary_weight="100"), name=ObjectName("evil", "part"))
    plan = planned(site(SHOP), mine, canary)
    assert not plan.choices


def test_a_regular_expression_at_anothers_host_takes_no_paths() -> None:
    evil = site(EVIL, "/.*", regex=True, use_regex="true")
    plan = planned(site(SHOP), evil)
    assert [(route.match, route.owner) for route in plan.routes] == [(Match.PREFIX, SHOP)]
    assert "a regular expression at a.org, which is shop/web's" in said(plan)
    assert len(planned(site(SHOP, share_with="evil"), evil).routes) == 2
    assert len(planned(site(SHOP), replace(evil, rules=(replace(evil.rules[0], host="b.org"),))).routes) == 2


def test_paths_that_nobody_has_are_for_all_unless_hosts_are_apart() -> None:
    shop, evil = site(SHOP, "/shop"), site(EVIL, "/evil")
    assert len(planned(shop, evil).routes) == 2
    apart = planned(shop, evil, apart=True)
    assert [route.owner for route in apart.routes] == [SHOP]
    assert "a path at a.org, which is shop/web's" in said(apart)
    assert len(planned(site(SHOP, "/shop", share_with="evil"), evil, apart=True).routes) == 2


def test_hosts_apart_hold_for_what_a_wildcard_covers() -> None:
    shop, evil = site(SHOP, host="*.a.org"), site(EVIL, host="www.a.org")
    assert len(planned(shop, evil).routes) == 2
    assert [route.owner for route in planned(shop, evil, apart=True).routes] == [SHOP]


def certificate(of: ObjectName, *names: str) -> Secret:
    text, _, key = make_certificate(NOW, *names).partition("-----BEGIN PRIVATE KEY-----")
    data = {"tls.crt": text.encode(), "tls.key": f"-----BEGIN PRIVATE KEY-----{key}".encode()}
    return Secret(of, "kubernetes.io/tls", MappingProxyType(data))


@pytest.mark.parametrize("hosts", [("a.org",), ()], ids=["named", "by the certificate"])
def test_nobody_has_a_certificate_served_for_anothers_host(hosts: tuple[str, ...]) -> None:
    evil = replace(site(EVIL, host="evil.org"), tls=(Tls(hosts, EVIL, "spec.tls[0]"),))
    plan = planned(site(SHOP), evil, secrets=(certificate(EVIL, "a.org", "evil.org"),))
    assert [each.hosts for each in plan.certificates] == ([] if hosts else [("evil.org",)])
    assert "a.org belongs to a namespace that does not share it" in said(plan)
    shared = planned(site(SHOP, share_with="evil"), evil, secrets=(certificate(EVIL, "a.org", "evil.org"),))
    assert [each.hosts for each in shared.certificates] == [hosts]
    assert not said(shared)


def test_the_time_for_canaries_of_one_path_grows_with_their_number() -> None:
    """All namespaces wait for it."""

    def seconds(count: int) -> float:
        names = (ObjectName("evil", f"c{number}") for number in range(count))
        canary = site(EVIL, canary="true", canary_by_header="X-Many", canary_by_header_value="a")
        canaries = [replace(canary, name=name) for name in names]
        begun = time.thread_time()
        planned(site(EVIL), *canaries)
        return time.thread_time() - begun

    few, many = (min(seconds(count) for _ in range(3)) for count in (250, 1_000))
    assert many < 8 * few, f"{few * 1000:.1f} ms, then {many * 1000:.1f} ms"


def test_within_a_namespace_all_is_as_ever() -> None:
    own = replace(site(SHOP, canary="true", canary_weight="10"), name=ObjectName("shop", "part"))
    regex = replace(site(SHOP, "/x.*", regex=True, use_regex="true"), name=ObjectName("shop", "regex"))
    plan = planned(site(SHOP), own, regex, apart=True)
    assert (len(plan.choices), len(plan.routes)) == (1, 2)
    assert not said(plan)
