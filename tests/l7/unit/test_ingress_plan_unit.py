"""Planning, without HAProxy: readers, policies, endpoints, pools."""

from dataclasses import replace
from types import MappingProxyType

import pytest
from tests.l7.plans import ToldPlan, plan_ingresses

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, parse_address
from vipwire.model.service import Service
from vipwire.plan.annotations import read_wishes
from vipwire_l7.ingress.plan.planner import is_ours
from vipwire_l7.plan.annotations import READERS, read_annotations
from vipwire_l7.plan.endpoints import choose_servers
from vipwire_l7.plan.plan import Setting
from vipwire_l7.plan.policy import Affinity, Algorithm, Policy
from vipwire_l7.plan.pool_policy import read_policy
from vipwire_l7.plan.sites import EVERY_HOST, UNAVAILABLE, Match, Pool, name_pool
from vipwire_l7.watch.objects import (
    BackendEndpoint,
    BackendPort,
    BackendService,
    BackendSlice,
    Ingress,
    IngressClass,
    PathRule,
    PathType,
    ServiceRef,
    Usability,
)

WEB = ObjectName("default", "web")
PORT = BackendPort("http", 80)
READY, DRAINING, NOT_READY = Usability.READY, Usability.DRAINING, Usability.NOT_READY


def annotated(**values: str) -> Ingress:
    given = {f"vipwire.io/{name.replace('_', '-')}": value for name, value in values.items()}
    return Ingress(WEB, "vipwire", annotations=MappingProxyType(given))


def ruled(name: str, *paths: tuple[str, PathType], host: str = "a.org", created: str = "") -> Ingress:
    ref = ServiceRef(WEB, 80)
    rules = tuple(PathRule(host, path, kind, ref, "f.backend") for path, kind in paths)
    return Ingress(ObjectName("default", name), "vipwire", rules, created=created)


def planned(*ingresses: Ingress, services: tuple[BackendService, ...] = (BackendService(WEB, (PORT,)),)) -> ToldPlan:
    return plan_ingresses(*ingresses, *services)


def slice_of(*uses: Usability, family: Family = Family.IPV4, port: int = 8080) -> BackendSlice:
    prefix = "10.0.0." if family is Family.IPV4 else "fd00::"
    endpoints = tuple(BackendEndpoint(parse_address(f"{prefix}{n}"), use) for n, use in enumerate(uses, 1))
    return BackendSlice(ObjectName("default", f"s-{family.value}"), WEB, family, {"http": port}, endpoints)


def pool(policy: Policy | None = None) -> Pool:
    return Pool("p", WEB, PORT, policy or Policy())


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("timeout-server", "30", 30_000),
        ("timeout-server", "1500ms", 1500),
        ("timeout-server", "5m", 300_000),
        ("body-size", "8k", 8192),
        ("body-size", "0", 0),
        ("cors-allow-headers", "A, B-C", ("A", "B-C")),
        ("set-request-headers", "A: b\n\nC: d: e", (("A", "b"), ("C", "d: e"))),
        ("cors-allow-origin", "*,https://*.a.org:8443", ("*", "https://*.a.org:8443")),
        ("set-request-headers", "Host: inner", (("Host", "inner"),)),
        ("remove-request-headers", "Server,X-A", ("Server", "X-A")),
        ("redispatch", "TRUE", True),
        ("redispatch", "0", False),
        ("app-root", "/x%20y?z=1", "/x%20y?z=1"),
        ("auth-secret", "ns/name", "ns/name"),
    ],
)
def test_readers_take(name: str, text: str, value: object) -> None:
    assert READERS[name](text) == value


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Connection", "Upgrade", "TE"])
def test_headers_that_tell_where_a_message_ends_are_not_for_annotations(name: str) -> None:
    for reader, text in (
        (READERS["set-request-headers"], f"X-A: b\n{name} : 5"),
        (READERS["remove-request-headers"], f"X-A, {name}"),
    ):
        with pytest.raises(ValueError, match="allowed: all headers but connection, content-length"):
            reader(text)
    with pytest.raises(ValueError, match=r"host$"):
        READERS["remove-request-headers"]("Host")


@pytest.mark.parametrize("text", ["\n", "a\nb", "a'b", "\x00", "é", "a" * 2000])
@pytest.mark.parametrize("name", sorted(set(READERS) - {"set-request-headers", "set-response-headers"}))
def test_no_reader_takes_what_could_end_a_word_or_a_line(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed|is not|length"):
        READERS[name](text)


def test_annotations_of_others_are_understood_and_ours_win() -> None:
    nginx, haproxy = "nginx.ingress.kubernetes.io/", "haproxy-ingress.github.io/"
    given = {
        f"{nginx}affinity": "cookie",
        f"{nginx}proxy-read-timeout": "5",
        f"{nginx}whitelist-source-range": "10.0.0.0/8",
        f"{haproxy}timeout-server": "9s",
        f"{haproxy}balance-algorithm": "leastconn",
        "vipwire.io/affinity": "cookie",
        "vipwire.io/session-cookie-name": "ours",
        f"{nginx}session-cookie-name": "theirs",
    }
    asked = read_annotations(Ingress(WEB, annotations=MappingProxyType(given)))
    policy = read_policy(asked, None)
    assert policy.affinity == Affinity("ours")
    assert policy.timeouts == (("server", 5000),)
    assert policy.balance.algorithm is Algorithm.LEAST_CONNECTIONS
    assert [str(prefix) for prefix in policy.allow] == ["10.0.0.0/8"]
    assert asked.problems == ()


def test_what_others_mean_otherwise_is_read_so() -> None:
    nginx = "nginx.ingress.kubernetes.io/"
    given = {f"{nginx}proxy-next-upstream-tries": "3", f"{nginx}upstream-hash-by": "$request_uri"}
    asked = read_annotations(Ingress(WEB, annotations=MappingProxyType(given)))
    policy = read_policy(asked, None)
    assert (policy.retries, policy.balance.algorithm, asked.problems) == (2, Algorithm.URI, ())


@pytest.mark.parametrize("text", ["", "ftp://x", "https://a b", "//evil/$host", "https://a.org/%zz", "'"])
def test_a_redirect_leads_to_a_url(text: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        READERS["permanent-redirect"](text)


def test_a_guard_that_cannot_be_read_closes_its_ingress() -> None:
    assert read_annotations(annotated(deny_source_range="x")).closed
    assert read_annotations(annotated(limit_rps="-1")).closed
    assert not read_annotations(annotated(balance="x")).closed


def test_the_class_decides_whose_an_ingress_is() -> None:
    setting = Setting()
    ours = IngressClass(ObjectName("", "edge"), setting.controller)
    classes = {ours.name: ours, ObjectName("", "vipwire"): IngressClass(ObjectName("", "vipwire"), "k8s.io/other")}
    assert is_ours(Ingress(WEB, "edge"), classes, setting)
    assert not is_ours(Ingress(WEB, "vipwire"), classes, setting)  # the class has another controller
    assert is_ours(Ingress(WEB, "vipwire"), {}, setting)
    assert not is_ours(Ingress(WEB), classes, setting)
    default = {ours.name: IngressClass(ours.name, ours.controller, default=True)}
    assert is_ours(Ingress(WEB), default, setting)


def test_the_older_ingress_has_a_path_whatever_the_order() -> None:
    old = ruled("z", ("/", PathType.PREFIX), created="2026-01-01T00:00:00Z")
    new = ruled("a", ("/", PathType.PREFIX), ("/", PathType.EXACT), created="2026-01-02T00:00:00Z")
    plans = [planned(*order) for order in ((old, new), (new, old))]
    for plan in plans:
        owners = {(route.match, route.path): route.owner.name for route in plan.routes}
        assert owners == {(Match.PREFIX, ""): "z", (Match.EXACT, "/"): "a"}
        assert [problem.object.name for problem in plan.problems] == ["a"]


def test_a_canary_has_what_its_path_asks_for_and_it_does_not_itself() -> None:
    asked = {"vipwire.io/deny-source-range": "10.0.0.0/8", "vipwire.io/retries": "7"}
    main = replace(ruled("main", ("/", PathType.PREFIX)), annotations=MappingProxyType(asked))
    part = {"vipwire.io/canary": "true", "vipwire.io/canary-weight": "10", "vipwire.io/retries": "1"}
    canary = replace(ruled("part", ("/", PathType.PREFIX)), annotations=MappingProxyType(part))
    plan = planned(main, canary)
    policies = {pool.name: pool.policy for pool in plan.pools}
    found = [policies[name] for name in plan.choices[0].targets[:1]]
    assert [(str(policy.deny[0]), policy.retries) for policy in found] == [("10.0.0.0/8", 1)]
    closed = replace(main, annotations=MappingProxyType({"vipwire.io/deny-source-range": "nonsense"}))
    plan = planned(closed, canary)
    assert (plan.choices, [route.target for route in plan.routes]) == ((), ["closed"])
    assert "answers 503, so the canary does too" in str(plan.problems[-1])


def test_equal_wishes_share_a_pool_and_missing_services_do_not_fall_through() -> None:
    first, second = ruled("a", ("/", PathType.PREFIX)), ruled("b", ("/", PathType.PREFIX), host="")
    plan = planned(first, second)
    assert [each.name for each in plan.pools] == ["default:web:80"]
    assert plan.sites == {"a.org", EVERY_HOST}
    nothing = planned(first, services=())
    assert [route.target for route in nothing.routes] == [UNAVAILABLE]


def test_pools_of_different_wishes_have_different_names() -> None:
    names = {name_pool(WEB, 80, policy) for policy in (Policy(), Policy(https=True), Policy(retries=1))}
    assert len(names) == 3
    assert name_pool(WEB, 80, Policy(https=True)) == name_pool(WEB, 80, Policy(https=True))


def addresses(*slices: BackendSlice, service: BackendService | None = None) -> list[Address]:
    return [server.endpoint.address for server in choose_servers(pool(), service, slices)]


def test_ready_endpoints_serve_and_going_ones_drain() -> None:
    servers = choose_servers(pool(), None, [slice_of(READY, DRAINING, NOT_READY)])
    assert [server.endpoint.use for server in servers] == [READY, DRAINING]
    fallback = choose_servers(pool(), None, [slice_of(DRAINING, NOT_READY)])
    assert [server.endpoint.use for server in fallback] == [READY]
    assert choose_servers(pool(), None, [slice_of(NOT_READY)]) == ()


def test_one_family_serves_so_that_no_pod_counts_twice() -> None:
    both = slice_of(READY), slice_of(READY, family=Family.IPV6)
    assert [len(each) for each in addresses(*both)] == [4]
    assert [len(each) for each in addresses(*both, service=BackendService(WEB, family=Family.IPV6))] == [16]
    assert [len(each) for each in addresses(both[1])] == [16]


def test_an_endpoint_in_two_slices_is_one_server() -> None:
    assert len(addresses(slice_of(READY), slice_of(DRAINING))) == 1


@pytest.mark.parametrize(
    ("zones", "ours", "weights"),
    [
        (("a", "b"), "a", [16, 0]),
        (("a", "b"), "", [16, 16]),
        (("a", "b"), "c", [16, 16]),  # none is for us
        (("a", ""), "a", [16, 16]),  # hints are not complete
        (("ab", "b"), "b", [16, 16]),
    ],
)
def test_endpoints_for_other_zones_get_no_new_clients(zones: tuple[str, ...], ours: str, weights: list[int]) -> None:
    endpoints = tuple(
        BackendEndpoint(parse_address(f"10.0.0.{n}"), READY, "", tuple(z)) for n, z in enumerate(zones, 1)
    )
    hinted = BackendSlice(ObjectName("default", "s"), WEB, Family.IPV4, {"http": 8080}, endpoints)
    assert [server.weight for server in choose_servers(pool(), None, [hinted], ours)] == weights


@pytest.mark.parametrize(
    ("text", "weights"),
    [
        ("", [16, 16]),
        ('{"10.0.0.1": 3}', [48, 16]),
        ('{"10.0.0.1": 100, "10.0.0.2": 50}', [200, 100]),
        ('{"10.0.0.2": 0}', [16, 0]),
        ('{"10.0.0.1": 101, "x": 1, "10.0.0.2": true}', [16, 16]),
        ("[1]", [16, 16]),
        ("{", [16, 16]),
    ],
)
def test_weights_of_the_service_apply(text: str, weights: list[int]) -> None:
    web = BackendService(WEB, annotations=MappingProxyType({"vipwire.io/weights": text}))
    assert [server.weight for server in choose_servers(pool(), web, [slice_of(READY, READY)])] == weights


def test_weights_mean_what_they_mean_to_the_proxy_and_a_bad_entry_is_told() -> None:
    annotations = {"vipwire.io/weights": '{"10.0.0.1":3,"10.0.0.2":101}'}
    web = BackendService(WEB, (PORT,), annotations=MappingProxyType(annotations))
    proxied = read_wishes(Service(WEB, (), (), annotations=tuple(annotations.items())))
    assert proxied.weights == {parse_address("10.0.0.1"): 3}
    assert [server.weight for server in choose_servers(pool(), web, [slice_of(READY, READY)])] == [48, 16]
    plan = planned(ruled("one", ("/", PathType.PREFIX)), services=(web,))
    (problem,) = plan.problems
    assert problem.object == ObjectName("default", "one")
    assert "10.0.0.2: '101' is no weight; allowed: whole numbers from 0 to 100" in problem.message


@pytest.mark.parametrize(
    ("other", "changed"),
    [("canary-weight-total", "canary-weight"), ("canary-by-header-pattern", "canary-by-header")],
)
def test_half_of_a_pair_of_annotations_is_left_out_with_the_other(other: str, changed: str) -> None:
    nginx = "nginx.ingress.kubernetes.io/"
    given = {f"{nginx}{changed}": "10", f"{nginx}{other}": "1000", f"{nginx}canary": "true"}
    asked = read_annotations(Ingress(WEB, annotations=MappingProxyType(given)))
    assert changed not in asked.values
    assert {each.field for each in asked.problems} == {
        f"metadata.annotations[{nginx}{other}]",
        f"metadata.annotations[{nginx}{changed}]",
    }
