"""Where no backend of a Route leads, whatever tenants name: `vipwire gateway` on a node of its own, TCP and UDP."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.l7.ingress.tenants import NEAR, NODE, OTHER, PORT, Json, Node, as_text, node, service, slice_of, written
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

pytestmark = pytest.mark.attack

API = "gateway.networking.k8s.io/v1"
CLASS = {
    "apiVersion": API,
    "kind": "GatewayClass",
    "metadata": {"name": "vipwire"},
    "spec": {"controllerName": "vipwire.io/gateway"},
}
REASON = "TargetNotPermitted"
ALLOW = "--allow-external-name"


def gateway(**listeners: tuple[int, str]) -> Json:
    made = [{"name": name, "port": port, "protocol": protocol} for name, (port, protocol) in listeners.items()]
    meta = {"name": "edge", "namespace": "evil"}
    return {
        "apiVersion": API,
        "kind": "Gateway",
        "metadata": meta,
        "spec": {"gatewayClassName": "vipwire", "listeners": made},
    }


def route(kind: str, name: str, listener: str, target: str, *, hosts: bool = True, filters: Any = None) -> Json:
    rule: Json = {"backendRefs": [{"name": target, "port": 80}]}
    spec: Json = {"parentRefs": [{"name": "edge", "sectionName": listener}], "rules": [rule]}
    if filters:
        rule["filters"] = filters
    if hosts:
        spec["hostnames"] = [f"{name}.example"]
    meta = {"name": name, "namespace": "evil"}
    return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}


def udp(name: str) -> Json:
    return service(name, ports=[{"name": "x", "port": 80, "targetPort": PORT, "protocol": "UDP"}])


def to(name: str) -> Json:
    return {"name": name, "port": 80}


def asked(name: str) -> list[Json]:
    return [{"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": to(name), "http": {}}}]


def mirrored(name: str) -> list[Json]:
    return [{"type": "RequestMirror", "requestMirror": {"backendRef": to(name)}}]


def datagrams(here: Node, port: int) -> set[str]:
    return {here.datagram(port) for _ in range(4)}


def test_no_route_leads_to_the_node_by_any_protocol_nor_by_a_mirror_nor_by_a_server_that_is_asked(
    tmp_path: Path,
) -> None:
    """HTTP, TCP and UDP; slices by hand and names of DNS, of which one is turned round while it is served."""
    with node(tmp_path) as here:
        turning = here.records["turning.test"] = {"A": [NEAR]}
        here.records["node.test"] = {"A": [NODE]}
        ports = {
            "tcp-bad": 8101,
            "tcp-name": 8102,
            "tcp-good": 8103,
            "tcp-turning": 8104,
            "udp-bad": 8105,
            "udp-good": 8106,
        }
        listeners = {name: (port, name[:3].upper()) for name, port in ports.items()}
        objects = [
            CLASS,
            gateway(http=(8000, "HTTP"), **listeners),
            service("bad"),
            slice_of("bad", NODE),
            service("loop"),
            slice_of("loop", "127.0.0.1"),
            service("good"),
            slice_of("good", NEAR),
            service("some"),
            slice_of("some", NODE, OTHER),
            service("name", "node.test"),
            service("turning", "turning.test"),
            udp("udp-bad"),
            slice_of("udp-bad", NODE, "127.0.0.1", protocol="UDP"),
            udp("udp-good"),
            slice_of("udp-good", NODE, NEAR, protocol="UDP"),
            *(route("HTTPRoute", name, "http", name) for name in ("bad", "loop", "good", "some", "name", "turning")),
            route("HTTPRoute", "mirror", "http", "good", filters=mirrored("bad")),
            route("HTTPRoute", "mirror-name", "http", "good", filters=mirrored("name")),
            route("HTTPRoute", "auth", "http", "good", filters=asked("bad")),
            route("GRPCRoute", "grpc", "http", "bad"),
            route("TCPRoute", "tcp-bad", "tcp-bad", "bad", hosts=False),
            route("TCPRoute", "tcp-name", "tcp-name", "name", hosts=False),
            route("TCPRoute", "tcp-good", "tcp-good", "good", hosts=False),
            route("TCPRoute", "tcp-turning", "tcp-turning", "turning", hosts=False),
            route("UDPRoute", "udp-bad", "udp-bad", "udp-bad", hosts=False),
            route("UDPRoute", "udp-good", "udp-good", "udp-good", hosts=False),
        ]
        with here.running("gateway", "--manifests", written(tmp_path, *objects), ALLOW):
            here.until(lambda: here.ask("good.example") == NEAR and here.ask("turning.example") == NEAR)
            for name in ("bad", "loop", "name", "auth"):
                assert here.ask(f"{name}.example") in ("500", "503"), name
            assert {here.ask("some.example") for _ in range(6)} == {OTHER}
            for name in ("mirror", "mirror-name"):
                assert [here.ask(f"{name}.example") for _ in range(4)] == [NEAR] * 4
            assert [here.ask("x", ports[name]) for name in ("tcp-bad", "tcp-name")] == ["000", "000"]
            assert [here.ask("x", ports[name]) for name in ("tcp-good", "tcp-turning")] == [NEAR, NEAR]
            here.until(lambda: datagrams(here, ports["udp-good"]) == {NEAR})
            assert datagrams(here, ports["udp-bad"]) == {""}
            turning["A"] = ["127.0.0.1"]
            here.until(lambda: here.ask("x", ports["tcp-turning"]) == "000")
            assert here.ask("turning.example") in ("500", "503")
            turning["A"] = [OTHER]
            here.until(lambda: here.ask("x", ports["tcp-turning"]) == OTHER)
            for name in ("bad", "loop", "name", "mirror", "mirror-name", "auth", "some", "grpc"):
                assert f'evil/{name} field=spec.rules error="{REASON}' in here.log, name
        assert here.hits == []


def test_the_condition_of_a_route_tells_what_is_refused(tmp_path: Path) -> None:
    with node(tmp_path) as here, up(tmp_path / "cluster"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)
        kubectl("create", "namespace", "evil")
        routes = ("far", "node", "good")
        objects = [
            CLASS,
            gateway(http=(8000, "HTTP"), udp=(8106, "UDP")),
            service("far", "good.test"),
            service("node"),
            slice_of("node", NODE),
            service("good"),
            slice_of("good", NEAR),
            udp("datagrams"),
            slice_of("datagrams", NODE, protocol="UDP"),
            *(route("HTTPRoute", name, "http", name) for name in routes),
            route("UDPRoute", "datagrams", "udp", "datagrams", hosts=False),
        ]
        kubectl("apply", "-f", "-", stdin=as_text(*objects))

        def resolved(name: str, kind: str = "httproute") -> tuple[str, str]:
            status = json.loads(kubectl("get", kind, name, "-n", "evil", "-o", "json")).get("status", {})
            found = [each for parent in status.get("parents", ()) for each in parent["conditions"]]
            return next(
                ((each["status"], each["reason"]) for each in found if each["type"] == "ResolvedRefs"), ("", "")
            )

        config = str(tmp_path / "cluster" / "ingress.kubeconfig")
        with here.running("gateway", "--kubeconfig", config):
            here.until(lambda: resolved("good") == ("True", "ResolvedRefs"))
            here.until(lambda: resolved("far") == resolved("node") == ("False", REASON))
            assert [here.ask(f"{name}.example") for name in ("far", "node")] == ["500", "500"]
            here.until(lambda: resolved("datagrams", "udproute") == ("False", REASON))
            kubectl("apply", "-f", "-", stdin=as_text(slice_of("node", OTHER)))
            here.until(lambda: here.ask("node.example") == OTHER)
            here.until(lambda: resolved("node") == ("True", "ResolvedRefs"))
        assert here.hits == []
