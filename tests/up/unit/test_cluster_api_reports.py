"""What people report of API servers: what is dropped is not judged; empty is not absent in custom kinds."""

from typing import Any

import pytest
import yaml
from tests.up.unit.cluster_here import SERVICES, Here, in_cluster, service
from tests.up.unit.controllers_here import allocating

WEB = f"{SERVICES}/web"
GATEWAY = "/apis/gateway.networking.k8s.io/v1/namespaces/default"
TIME = "2026-01-01T00:00:00Z"
CONDITION = {"type": "A", "status": "True", "reason": "R", "message": "", "lastTransitionTime": None}
ROUTE_STATUS = {"parents": [{"parentRef": {"name": "gw"}, "controllerName": "a.test/x", "conditions": [CONDITION]}]}


def custom(kind: str, name: str = "x", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec,
    }


def causes(answer: Any) -> list[str]:
    return [each["field"] for each in answer.get("details", {}).get("causes", ())]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (SERVICES, service("web"), {"conditions": [{"type": "A"}]}),
        (SERVICES, service("web"), {"loadBalancer": {"ingress": [{"ip": "x"}]}}),
        (f"{GATEWAY}/httproutes", custom("HTTPRoute"), ROUTE_STATUS),
        (f"{GATEWAY}/grpcroutes", custom("GRPCRoute"), ROUTE_STATUS),
        ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}, {"phase": "No"}),
    ],
)
@in_cluster()
async def test_a_status_that_is_dropped_is_not_judged(here: Here, path: str, body: Any, status: Any) -> None:
    made = await here.post(path, body | {"status": status})
    assert made.get("status", {}).get("conditions") is None
    assert made.get("status", {}).get("parents", []) == []
    place = f"{path}/{body['metadata']['name']}"
    code, answer = await here.send("PUT", place, made | {"status": status})
    assert (code, causes(answer)) == (200, [])
    code, answer = await here.send("PATCH", place, {"status": status}, patch="merge-patch+json")
    assert (code, causes(answer)) == (200, [])


@in_cluster()
async def test_an_object_beside_a_status_is_not_judged(here: Here) -> None:
    made = await here.post(SERVICES, service("web"))
    made["spec"] |= {"sessionAffinity": "X", "ports": [{"port": 99999}]}
    made["status"] = {"conditions": [CONDITION | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    code, answer = await here.send("PUT", f"{WEB}/status", made)
    assert (code, causes(answer)) == (200, [])
    assert answer["spec"]["sessionAffinity"] == "None"
    made["metadata"].pop("resourceVersion")
    made["status"] = {"conditions": [{"type": "A"}]}
    code, answer = await here.send("PUT", f"{WEB}/status", made)
    assert code == 422
    assert all(field.startswith("status.") for field in causes(answer))


@pytest.mark.parametrize("before", ["NodePort", "LoadBalancer"])
@pytest.mark.parametrize("after", ["ClusterIP", "NodePort", "LoadBalancer", "ExternalName"])
@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"sessionAffinity": "X"}, "spec.sessionAffinity"),
        ({"internalTrafficPolicy": "X"}, "spec.internalTrafficPolicy"),
    ],
)
@allocating()
async def test_what_a_new_type_clears_is_not_judged(
    here: Here, before: str, after: str, wrong: dict[str, Any], field: str
) -> None:
    await here.post(SERVICES, service("web", type=before))
    spec = {"type": after, **({"externalName": "a.test"} if after == "ExternalName" else {})}
    for sent in (spec | wrong, spec):
        code, answer = await here.send("PATCH", WEB, {"spec": sent}, patch="merge-patch+json")
        assert (code, causes(answer)) == ((422, [field]) if sent != spec else (200, []))


@allocating()
async def test_a_body_is_judged_before_its_name(here: Here) -> None:
    """A taken name takes no address."""
    made = await here.post(SERVICES, service("web", type="NodePort"))
    for _ in range(300):
        code, answer = await here.send("POST", SERVICES, service("web", type="NodePort"))
        assert (code, answer["reason"]) == (409, "AlreadyExists")
    for wrong in ({"sessionAffinity": "X"}, {"type": "ExternalName"}, {"ports": [{"port": 99999}]}):
        code, answer = await here.send("POST", SERVICES, service("web", **wrong))
        assert (code, answer["reason"]) == (422, "Invalid"), answer
    assert (await here.send("GET", WEB))[1] == made
    fixed = {each: made["spec"][each] for each in ("type", "clusterIP", "ports")}
    assert (await here.send("POST", SERVICES, service("web", **fixed)))[0] == 409


@in_cluster()
async def test_answers_in_yaml_are_those_in_json(here: Here) -> None:
    yes = "application/yaml"
    odd = {"yes": "on", "line": "a: b\n- c", "wide": "é\u2028\U0001f600", "number": "0x10"}
    empty = yaml.safe_load((await here.send("GET", SERVICES, Accept=yes))[1])
    assert (empty["kind"], empty["items"]) == ("ServiceList", [])
    body = service("a") | {"metadata": {"name": "a", "annotations": odd}}
    code, made = await here.send("POST", SERVICES, body, Accept=yes)
    assert (code, yaml.safe_load(made)["metadata"]["annotations"]) == (201, odd)
    for name in "bc":
        await here.post(SERVICES, service(name))
    table = ";as=Table;v=v1;g=meta.k8s.io"
    for path, more in ((SERVICES, ""), (f"{SERVICES}/a", ""), (f"{SERVICES}?limit=1", ""), (SERVICES, table)):
        _, told = await here.send("GET", path, Accept=f"application/json{more}")
        code, text = await here.send("GET", path, Accept=f"{yes}{more}, application/json")
        assert (code, yaml.safe_load(text)) == (200, told)
    assert (await here.send("GET", f"{SERVICES}?watch=true", Accept=yes))[0] == 406
    async with here.watch(f"{SERVICES}?watch=true&resourceVersion=0", Accept=f"{yes}, application/json") as events:
        assert await events.names(3) == [("ADDED", each) for each in "abc"]
    code, gone = await here.send("DELETE", f"{SERVICES}/a", Accept=yes)
    assert (code, yaml.safe_load(gone)["metadata"]["annotations"]) == (200, odd)
    for method, path, user, code in (
        ("GET", "/a", "admin", 404),
        ("GET", "", "nobody", 403),
        ("PUT", "", "admin", 405),
    ):
        told = await here.send(method, f"{SERVICES}{path}", Accept=yes, user=user)
        _, known = await here.send(method, f"{SERVICES}{path}", user=user)
        assert (told[0], yaml.safe_load(told[1])) == (code, known)


@pytest.mark.parametrize("kind", ["HTTPRoute", "GRPCRoute", "TCPRoute", "UDPRoute", "TLSRoute"])
@in_cluster()
async def test_the_core_group_is_not_a_default(here: Here, kind: str) -> None:
    backend = {"rules": [{"backendRefs": [{"name": "web", "port": 80}]}]}
    parents = [{"group": "", "kind": "Service", "name": "web", "port": 80}, {"name": "gw"}]
    names: dict[str, Any] = {"hostnames": ["a.test"]} if kind == "TLSRoute" else {}
    made = await here.post(f"{GATEWAY}/{kind.lower()}s", custom(kind, **{"parentRefs": parents} | backend | names))
    assert [each["group"] for each in made["spec"]["parentRefs"]] == ["", "gateway.networking.k8s.io"]


@in_cluster()
async def test_an_empty_word_is_no_default(here: Here) -> None:
    listener = {"name": "a", "port": 80, "protocol": "HTTP", "allowedRoutes": {"kinds": [{"group": "", "kind": "X"}]}}
    made = await here.post(f"{GATEWAY}/gateways", custom("Gateway", gatewayClassName="c", listeners=[listener]))
    assert made["spec"]["listeners"][0]["allowedRoutes"]["kinds"] == [{"group": "", "kind": "X"}]
    for path, rule in {
        "matches[0].path.type": {"matches": [{"path": {"type": "", "value": "/"}}]},
        "matches[0].method": {"matches": [{"method": ""}]},
    }.items():
        code, answer = await here.send("POST", f"{GATEWAY}/httproutes", custom("HTTPRoute", rules=[rule]))
        assert code == 422, path
        assert f"spec.rules[0].{path}" in causes(answer)


def _route(**rule: Any) -> dict[str, Any]:
    return custom("HTTPRoute", rules=[rule])


def _modified(name: str, value: str) -> dict[str, Any]:
    header = {"requestHeaderModifier": {"set": [{"name": name, "value": value}]}}
    return _route(filters=[{"type": "RequestHeaderModifier"} | header])


def _backend(**more: Any) -> dict[str, Any]:
    return _route(backendRefs=[{"name": "web", "port": 80} | more])


def _rewritten(kind: str, **more: Any) -> dict[str, Any]:
    field = {"URLRewrite": "urlRewrite", "RequestRedirect": "requestRedirect"}[kind]
    return _route(filters=[{"type": kind, field: more}])


def _listening(**more: Any) -> dict[str, Any]:
    return custom("Gateway", gatewayClassName="c", listeners=[{"name": "a", "port": 80, "protocol": "HTTP"} | more])


@pytest.mark.parametrize(
    "body",
    [
        *(
            custom("HTTPRoute", parentRefs=[{"name": "g", field: ""}])
            for field in ("kind", "namespace", "sectionName")
        ),
        *(custom("HTTPRoute", parentRefs=[{"name": "g", field: "*"}]) for field in ("group", "kind", "namespace")),
        *(_backend(**{field: value}) for field in ("kind", "namespace") for value in ("", "*")),
        _backend(group="*"),
        _listening(hostname=""),
        _listening(hostname="*"),
        *(_rewritten("RequestRedirect", hostname=host) for host in ("", "*.a.test")),
        *(_rewritten("URLRewrite", hostname=host) for host in ("", "-a.test")),
        *(_modified(name, "v") for name in ("a:b", "a b", "")),
        *(_modified("a", value) for value in ("", "a\nb", "a\r")),
        *(_route(matches=[{"headers": [{"name": name, "value": "v"}]}]) for name in ("a:b", "a b", "")),
        _route(matches=[{"headers": [{"name": "a", "value": ""}]}]),
        _route(matches=[{"queryParams": [{"name": "a b", "value": "v"}]}]),
        _route(matches=[{"queryParams": [{"name": "a", "value": ""}]}]),
        custom("GRPCRoute", rules=[{"matches": [{"headers": [{"name": "a b", "value": "v"}]}]}]),
    ],
)
@in_cluster()
async def test_the_gateway_api_bounds_its_texts(here: Here, body: dict[str, Any]) -> None:
    code, answer = await here.send("POST", f"{GATEWAY}/{body['kind'].lower()}s", body)
    assert code == 422, answer


@pytest.mark.parametrize(
    "body",
    [
        custom("HTTPRoute", parentRefs=[{"name": "g", "group": "", "kind": "Service", "sectionName": "a.b"}]),
        _backend(group="a.test", kind="X", namespace="n"),
        _listening(hostname="*.a.test"),
        _modified("X-A_b!", " v "),
        _route(matches=[{"headers": [{"name": "a", "value": "v w"}], "queryParams": [{"name": "a", "value": "1"}]}]),
        _rewritten("URLRewrite", hostname="a.test"),
    ],
)
@in_cluster()
async def test_texts_within_the_bounds_are_accepted(here: Here, body: dict[str, Any]) -> None:
    await here.post(f"{GATEWAY}/{body['kind'].lower()}s", body)


@in_cluster()
async def test_ports_of_one_number_have_appliers_of_their_own(here: Here) -> None:
    """The protocol is a part of the key, also where an applier leaves it to its default."""

    async def apply(manager: str, *ports: dict[str, Any]) -> list[tuple[str, str, int]]:
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "dns"}, "spec": {"ports": list(ports)}}
        code, answer = await here.send(
            "PATCH", f"{SERVICES}/dns?fieldManager={manager}", body, patch="apply-patch+yaml"
        )
        assert code in (200, 201), answer
        return [(each["name"], each["protocol"], each["targetPort"]) for each in answer["spec"]["ports"]]

    tcp, udp = {"name": "tcp", "port": 53}, {"name": "udp", "port": 53, "protocol": "UDP"}
    assert await apply("a", tcp) == [("tcp", "TCP", 53)]
    assert await apply("b", udp) == [("tcp", "TCP", 53), ("udp", "UDP", 53)]
    assert await apply("a", tcp | {"targetPort": 5353}) == [("tcp", "TCP", 5353), ("udp", "UDP", 53)]
    assert await apply("a", tcp | {"protocol": "TCP"}) == [("tcp", "TCP", 53), ("udp", "UDP", 53)]
    assert await apply("c", tcp) == [("tcp", "TCP", 53), ("udp", "UDP", 53)]
    assert await apply("a") == [("tcp", "TCP", 53), ("udp", "UDP", 53)], "c still wants it"
    assert await apply("c", udp) == [("udp", "UDP", 53)]


@pytest.mark.parametrize(
    ("live", "wanted", "merged"),
    [
        ("ab", "c", "abc"),
        ("ab", "b", "ab"),
        ("ab", "ba", "ba"),
        ("xay", "an", "xayn"),
        ("abx", "ban", "bxan"),
        ("xayb", "na", "xnayb"),
        ("", "ab", "ab"),
        ("ab", "", "ab"),
        ("xab", "bca", "xbca"),
    ],
)
@in_cluster()
async def test_what_others_applied_keeps_its_place(here: Here, live: str, wanted: str, merged: str) -> None:
    """Else two appliers would move each other's elements for ever, and ports[0] with them."""
    conditions = {
        each: {"type": each, "status": "True", "reason": "R", "message": "", "lastTransitionTime": TIME}
        for each in "abcnxy"
    }

    async def apply(manager: str, order: str) -> tuple[str, str]:
        body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}
        body["status"] = {"conditions": [conditions[each] for each in order]}
        path = f"{WEB}/status?fieldManager={manager}&force=true"
        code, answer = await here.send("PATCH", path, body, patch="apply-patch+yaml")
        assert code == 200, answer
        found = answer.get("status", {}).get("conditions", [])
        return "".join(each["type"] for each in found), answer["metadata"]["resourceVersion"]

    await here.post(SERVICES, service("web"))
    assert (await apply("others", live))[0] == live
    found, version = await apply("ours", wanted)
    assert found == merged
    for manager, order in (("others", live), ("ours", wanted)):
        if not set(live) & set(wanted):
            assert await apply(manager, order) == (merged, version), "nothing is left to do"
