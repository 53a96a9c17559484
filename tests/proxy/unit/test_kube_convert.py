"""What of a Kubernetes object is valid: one rule a test, through the door that manifests use."""

from typing import Any

import pytest
from tests.fakes.documents import read_document
from tests.fakes.objects import node, service, service_cidr, slice_of

from vipwire.model.names import ObjectName
from vipwire.model.net import Family, Protocol, format_address
from vipwire.model.node import Node, ServiceCIDR
from vipwire.model.problem import Problem
from vipwire.model.service import EndpointSlice, Service, ServiceType, TrafficPolicy

Json = dict[str, Any]


def one_service(value: Json) -> tuple[Service, list[str]]:
    objects, problems = read_document("Service", value)
    assert len(objects) == 1, problems
    assert isinstance(objects[0], Service)
    return objects[0], [problem.field for problem in problems]


def one_slice(value: Json) -> tuple[EndpointSlice, list[str]]:
    objects, problems = read_document("EndpointSlice", value)
    assert len(objects) == 1, problems
    assert isinstance(objects[0], EndpointSlice)
    return objects[0], [problem.field for problem in problems]


def labelled(value: Json, key: str) -> Json:
    labels = {**(value["metadata"].get("labels") or {}), key: ""}
    return {**value, "metadata": {**value["metadata"], "labels": labels}}


def test_an_ordinary_service_is_taken_whole() -> None:
    value, problems = one_service(service(3))
    assert problems == []
    assert value.name == ObjectName("ns-3", "service-3")
    assert [format_address(address) for address in value.cluster_ips] == ["10.96.0.3"]
    assert [(port.name, port.protocol, port.port, port.node_port) for port in value.ports] == [
        ("http", Protocol.TCP, 80, 0)
    ]
    assert value.created == 1767225600.0
    assert value.affinity_seconds is None


@pytest.mark.parametrize(
    "value",
    [
        service(clusterIP="None", clusterIPs=["None"]),
        service(type="ExternalName"),
        labelled(service(), "service.kubernetes.io/service-proxy-name"),
    ],
    ids=["headless", "external name", "another proxy's"],
)
def test_a_service_that_is_not_ours_is_left_out_silently(value: Json) -> None:
    assert read_document("Service", value) == ((), ())


def test_a_service_without_a_cluster_ip_is_reported() -> None:
    objects, problems = read_document("Service", service(clusterIP="", clusterIPs=None))
    assert objects == ()
    assert [problem.field for problem in problems] == ["spec.clusterIP"]


def test_both_families_are_taken_and_a_second_address_of_one_is_not() -> None:
    value, problems = one_service(service(clusterIPs=["10.96.0.1", "fd00::1", "10.96.0.2"]))
    assert [format_address(address) for address in value.cluster_ips] == ["10.96.0.1", "fd00::1"]
    assert problems == ["spec.clusterIPs"]


def test_a_bad_cluster_ip_leaves_the_other() -> None:
    value, problems = one_service(service(clusterIPs=["10.96.0.999", "fd00::1"]))
    assert [format_address(address) for address in value.cluster_ips] == ["fd00::1"]
    assert problems == ["spec.clusterIPs[0]"]


def test_no_valid_cluster_ip_leaves_no_service() -> None:
    objects, problems = read_document("Service", service(clusterIPs=["127.0.0.1"]))
    assert objects == ()
    assert [problem.field for problem in problems] == ["spec.clusterIPs[0]"]


@pytest.mark.parametrize(
    ("port", "field"),
    [
        ({"port": 0}, "spec.ports[1].port"),
        ({"port": 65536}, "spec.ports[1].port"),
        ({"port": -1}, "spec.ports[1].port"),
        ({}, "spec.ports[1].port"),
        ({"port": 81, "protocol": "ICMP"}, "spec.ports[1].protocol"),
        ({"port": 81, "protocol": "tcp"}, "spec.ports[1].protocol"),
        ({"port": 80, "name": "other"}, "spec.ports[1].port"),
        ({"port": 81, "name": "http"}, "spec.ports[1].name"),
        ({"port": 81, "name": 'x" drop'}, "spec.ports[1].name"),
        ({"port": 81, "name": "x" * 64}, "spec.ports[1].name"),
    ],
)
def test_a_bad_port_is_left_out_and_the_others_stay(port: Json, field: str) -> None:
    value, problems = one_service(service(ports=[{"name": "http", "port": 80}, port, {"name": "last", "port": 443}]))
    assert [kept.port for kept in value.ports] == [80, 443]
    assert problems == [field]


def test_the_same_number_with_another_protocol_is_another_port() -> None:
    ports = [{"name": "a", "port": 53, "protocol": "UDP"}, {"name": "b", "port": 53, "protocol": "TCP"}]
    value, problems = one_service(service(ports=ports))
    assert [(port.port, port.protocol) for port in value.ports] == [(53, Protocol.UDP), (53, Protocol.TCP)]
    assert problems == []


@pytest.mark.parametrize(("node_port", "kept"), [(0, 0), (1, 1), (65535, 65535), (65536, 0), (-4, 0), (None, 0)])
def test_a_node_port_is_1_to_65535_and_its_port_stays_without_it(node_port: int | None, kept: int) -> None:
    value, problems = one_service(service(type="NodePort", ports=[{"port": 80, "nodePort": node_port}]))
    assert [port.node_port for port in value.ports] == [kept]
    assert bool(problems) == (kept != (node_port or 0))


def test_a_node_port_given_twice_goes_to_the_first() -> None:
    ports = [{"name": "a", "port": 80, "nodePort": 30000}, {"name": "b", "port": 81, "nodePort": 30000}]
    value, problems = one_service(service(type="NodePort", ports=ports))
    assert [port.node_port for port in value.ports] == [30000, 0]
    assert problems == ["spec.ports[1].nodePort"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("type", "Clusterip"),
        ("internalTrafficPolicy", "local"),
        ("externalTrafficPolicy", "Nearby"),
        ("sessionAffinity", "Cookie"),
    ],
)
def test_an_unknown_choice_is_the_default_and_reported(field: str, value: str) -> None:
    converted, problems = one_service(service(0, **{field: value}))
    assert converted.type is ServiceType.CLUSTER_IP
    assert converted.internal_policy is TrafficPolicy.CLUSTER
    assert converted.external_policy is TrafficPolicy.CLUSTER
    assert converted.affinity_seconds is None
    assert problems == [f"spec.{field}"]


@pytest.mark.parametrize(
    ("config", "seconds", "good"),
    [
        (None, 10800, True),
        ({"clientIP": None}, 10800, True),
        ({"clientIP": {"timeoutSeconds": 1}}, 1, True),
        ({"clientIP": {"timeoutSeconds": 86400}}, 86400, True),
        ({"clientIP": {"timeoutSeconds": 0}}, 10800, False),
        ({"clientIP": {"timeoutSeconds": 86401}}, 10800, False),
    ],
)
def test_affinity_lasts_1_to_86400_seconds(config: Json | None, seconds: int, good: bool) -> None:  # noqa: FBT001
    value, problems = one_service(service(sessionAffinity="ClientIP", sessionAffinityConfig=config))
    assert value.affinity_seconds == seconds
    assert good == (problems == [])


def balanced(ingress: list[Json], **spec: Any) -> Json:
    return {**service(type="LoadBalancer", **spec), "status": {"loadBalancer": {"ingress": ingress}}}


def test_an_ingress_counts_when_packets_arrive_with_its_address() -> None:
    value, problems = one_service(
        balanced(
            [
                {"ip": "203.0.113.1"},
                {"ip": "203.0.113.2", "ipMode": "VIP"},
                {"ip": "203.0.113.3", "ipMode": "Proxy"},
                {"hostname": "lb.example.com"},
                {"ip": "203.0.113.4", "ipMode": "Strange"},
                {"ip": "nonsense"},
                {"ip": "203.0.113.1"},
            ]
        )
    )
    assert [format_address(address)[-1] for address in value.load_balancer_ips] == ["1", "2", "4"]
    assert problems == ["status.loadBalancer.ingress[4].ipMode", "status.loadBalancer.ingress[5].ip"]


def test_source_ranges_are_trimmed_and_the_invalid_left_out() -> None:
    value, problems = one_service(
        balanced([{"ip": "203.0.113.1"}], loadBalancerSourceRanges=[" 192.0.2.7/24 ", "bad", "2001:db8::/32"])
    )
    assert [str(prefix) for prefix in value.source_ranges] == ["192.0.2.0/24", "2001:db8::/32"]
    assert len(value.load_balancer_ips) == 1
    assert problems == ["spec.loadBalancerSourceRanges[1]"]


def test_source_ranges_that_are_all_invalid_do_not_open_the_load_balancer() -> None:
    value, problems = one_service(balanced([{"ip": "203.0.113.1"}], loadBalancerSourceRanges=["10.0.0.0/99"]))
    assert value.load_balancer_ips == ()
    assert value.source_ranges == ()
    assert problems == ["spec.loadBalancerSourceRanges[0]", "spec.loadBalancerSourceRanges"]


@pytest.mark.parametrize(
    ("kind", "policy", "port"),
    [("LoadBalancer", "Local", 31000), ("LoadBalancer", "Cluster", 0), ("NodePort", "Local", 0)],
)
def test_health_check_node_port_needs_a_local_load_balancer(kind: str, policy: str, port: int) -> None:
    value, problems = one_service(service(type=kind, externalTrafficPolicy=policy, healthCheckNodePort=31000))
    assert value.health_check_node_port == port
    assert problems == []


def test_external_ips_are_kept_but_not_special_ones() -> None:
    addresses = ["198.51.100.1", "127.0.0.1", "0.0.0.0", "224.0.0.1", "169.254.1.1", "::1", "fe80::1", "2001:db8::1"]
    value, problems = one_service(service(externalIPs=addresses))
    assert [format_address(address) for address in value.external_ips] == ["198.51.100.1", "2001:db8::1"]
    assert problems == [f"spec.externalIPs[{index}]" for index in range(1, 7)]


def test_only_annotations_that_say_how_to_balance_are_kept() -> None:
    value = service()
    value["metadata"]["annotations"] = {"vipwire.io/b": "2", "kube-router.io/a": "1", "example.com/c": "3"}
    assert one_service(value)[0].annotations == (("kube-router.io/a", "1"), ("vipwire.io/b", "2"))


def test_a_bad_time_of_creation_is_unknown() -> None:
    value = service()
    value["metadata"]["creationTimestamp"] = "yesterday"
    converted, problems = one_service(value)
    assert converted.created == 0.0
    assert problems == ["metadata.creationTimestamp"]


def test_names_of_the_greatest_length_are_taken_and_longer_ones_not() -> None:
    value = service()
    value["metadata"].update(name="n" * 253, namespace="s" * 63)
    assert one_service(value)[1] == []
    value["metadata"].update(namespace="s" * 64)
    objects, problems = read_document("Service", value)
    assert objects == ()
    assert [problem.field for problem in problems] == ["metadata.namespace"]


def test_null_means_absent_everywhere() -> None:
    value, problems = one_service(
        service(ports=[{"name": None, "protocol": None, "port": 80, "nodePort": None}], externalIPs=None, type=None)
    )
    assert [(port.name, port.protocol) for port in value.ports] == [("", Protocol.TCP)]
    assert problems == []


def test_a_wrong_type_names_the_field() -> None:
    objects, problems = read_document("Service", service(ports=[{"port": "80"}]))
    assert objects == ()
    (problem,) = problems
    assert problem[:3] == ("Service", ObjectName("ns-0", "service-0"), "spec.ports[0].port")
    assert "int" in problem.message


def test_conditions_that_are_unknown_are_ready_and_serving() -> None:
    value = slice_of(0, 4)
    value["endpoints"][0]["conditions"] = None
    value["endpoints"][1]["conditions"] = {"ready": None, "serving": None, "terminating": None}
    value["endpoints"][2]["conditions"] = {"ready": False, "serving": True, "terminating": True}
    value["endpoints"][3]["conditions"] = {"ready": False}
    converted, problems = one_slice(value)
    states = [(endpoint.ready, endpoint.serving, endpoint.terminating) for endpoint in converted.endpoints]
    assert states == [(True, True, False), (True, True, False), (False, True, True), (False, True, False)]
    assert problems == []


def test_a_slice_tells_its_service_hints_and_trigger() -> None:
    value = slice_of(7, 1)
    value["endpoints"][0]["hints"] = {"forZones": [{"name": "zone-1"}], "forNodes": [{"name": "node-1"}]}
    converted, problems = one_slice(value)
    assert converted.service == ObjectName("ns-7", "service-7")
    assert converted.triggered == 1767225600.0
    assert (converted.endpoints[0].zones, converted.endpoints[0].nodes) == (("zone-1",), ("node-1",))
    assert converted.endpoints[0].node == "node-7"
    assert problems == []


def test_bad_endpoints_are_left_out_and_the_others_stay() -> None:
    value = slice_of(0, 6)
    endpoints = value["endpoints"]
    endpoints[0]["addresses"] = ["10.0.0.1", "not used"]
    endpoints[1]["addresses"] = []
    endpoints[2]["addresses"] = ["10.0.0.256"]
    endpoints[3]["addresses"] = ["fd00::1"]
    endpoints[4]["addresses"] = ["255.255.255.255"]
    converted, problems = one_slice(value)
    assert [format_address(endpoint.address) for endpoint in converted.endpoints] == ["10.0.0.1", "10.128.0.5"]
    assert problems == [
        "endpoints[1].addresses",
        "endpoints[2].addresses[0]",
        "endpoints[3].addresses[0]",
        "endpoints[4].addresses[0]",
    ]


def test_bad_and_repeated_ports_of_a_slice_are_left_out() -> None:
    value = slice_of(0, 1)
    ports = [{"port": 8080}, {"name": "", "port": 8081}, {"name": "b"}, {"name": "c", "port": 1, "protocol": "X"}]
    converted, problems = one_slice({**value, "ports": ports})
    assert [port.port for port in converted.ports] == [8080]
    assert problems == ["ports[1].name", "ports[2].port", "ports[3].protocol"]


@pytest.mark.parametrize("key", ["service.kubernetes.io/headless", "service.kubernetes.io/service-proxy-name"])
def test_slices_of_others_are_left_out(key: str) -> None:
    assert read_document("EndpointSlice", labelled(slice_of(), key)) == ((), ())


def test_a_slice_of_no_service_or_of_names_is_left_out() -> None:
    orphan = slice_of()
    del orphan["metadata"]["labels"]["kubernetes.io/service-name"]
    assert read_document("EndpointSlice", orphan) == ((), ())
    assert read_document("EndpointSlice", {**slice_of(), "addressType": "FQDN"}) == ((), ())


def test_an_unknown_address_type_is_reported() -> None:
    objects, problems = read_document("EndpointSlice", {**slice_of(), "addressType": "IPX"})
    assert objects == ()
    assert [problem.field for problem in problems] == ["addressType"]


def test_twenty_thousand_bad_endpoints_are_told_of_briefly() -> None:
    value = slice_of(0, 1)
    value["endpoints"] = [{"addresses": ["x"]}] * 20_000 + value["endpoints"]
    objects, problems = read_document("EndpointSlice", value)
    assert isinstance(objects[0], EndpointSlice)
    assert len(objects[0].endpoints) == 1
    assert len(problems) == 21
    assert problems[-1].message.startswith("19980 more")


def test_endpoints_become_a_slice_for_each_subset_and_family() -> None:
    value = {
        "metadata": {"name": "web", "namespace": "default"},
        "subsets": [
            {
                "addresses": [{"ip": "10.0.0.1", "nodeName": "a"}, {"ip": "fd00::1"}],
                "notReadyAddresses": [{"ip": "10.0.0.2"}],
                "ports": [{"name": "http", "port": 8080}],
            },
            {"addresses": [{"ip": "10.0.0.3"}, {"ip": "bad"}], "ports": [{"port": 1}]},
        ],
    }
    objects, problems = read_document("Endpoints", value)
    slices = [item for item in objects if isinstance(item, EndpointSlice)]
    assert [(item.family, len(item.endpoints)) for item in slices] == [
        (Family.IPV4, 2),
        (Family.IPV6, 1),
        (Family.IPV4, 1),
    ]
    assert [(item.ready, item.serving) for item in slices[0].endpoints] == [(True, True), (False, False)]
    assert len({item.name for item in slices}) == 3
    assert {item.service for item in slices} == {ObjectName("default", "web")}
    assert [problem.field for problem in problems] == ["subsets[1].addresses[1].ip"]


def test_endpoints_that_are_not_to_be_mirrored_are_left_out() -> None:
    labels = {"endpointslice.kubernetes.io/skip-mirror": "true"}
    value = {"metadata": {"name": "web", "namespace": "default", "labels": labels}, "subsets": []}
    assert read_document("Endpoints", value) == ((), ())


def test_a_node_tells_internal_addresses_first() -> None:
    value = node("Node-0".lower())
    value["status"]["addresses"] = [
        {"type": "ExternalIP", "address": "203.0.113.9"},
        {"type": "InternalIP", "address": "192.0.2.10"},
        {"type": "InternalIP", "address": "fd00::10"},
        {"type": "InternalIP", "address": "oops"},
    ]
    value["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]
    value["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    objects, problems = read_document("Node", value)
    (converted,) = objects
    assert isinstance(converted, Node)
    assert [format_address(item) for item in converted.addresses] == ["192.0.2.10", "fd00::10", "203.0.113.9"]
    assert converted.taints == {"ToBeDeletedByClusterAutoscaler"}
    assert converted.deleting
    assert converted.zone == "zone-0"
    assert [str(prefix) for prefix in converted.pod_cidrs] == ["10.244.0.0/24"]
    assert [problem.field for problem in problems] == ["status.addresses[3].address"]


def test_a_service_cidr_has_one_prefix_a_family() -> None:
    objects, problems = read_document(
        "ServiceCIDR", service_cidr("x", "10.96.0.0/12", "fd00::/108", "10.0.0.0/8", "?")
    )
    (converted,) = objects
    assert isinstance(converted, ServiceCIDR)
    assert [str(prefix) for prefix in converted.prefixes] == ["10.96.0.0/12", "fd00::/108"]
    assert [problem.field for problem in problems] == ["spec.cidrs[3]", "spec.cidrs"]


def test_a_problem_reads_as_a_sentence() -> None:
    problem = Problem("Service", ObjectName("a", "b"), "spec.ports[0].port", "0 is not a port")
    assert str(problem) == "Service a/b: spec.ports[0].port: 0 is not a port"
