"""Where no backend leads, whatever tenants name and whatever DNS says: `vipwire ingress` on a node of its own."""

import json
import time
from pathlib import Path

import pytest
from tests.fakes.own_network import run
from tests.l7.ingress.tenants import (
    CLASS_E,
    NEAR,
    NODE,
    OTHER,
    THIRD,
    Json,
    as_text,
    ingress,
    node,
    service,
    slice_of,
    written,
)
from tests.up.unit.cluster_process import CLIENTS, Kubectl, up

pytestmark = pytest.mark.attack

REASON = "TargetNotPermitted"
SPELLINGS = (
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.01",
    "127.0.0.1.",
    "169.254.169.254",
    "10.9.0.1",
    "0",
    "localhost",
    "LOCALHOST.",
    "localhost.localdomain",
    "ip6-localhost",
    "a.localhost",
)
"""Of this node, as names of ExternalName: none is a name of DNS."""
FOREIGN = (
    "shop.victim.svc.cluster.local",
    "shop.victim.svc.cluster.local.",
    "SHOP.Victim.SVC.cluster.LOCAL",
    "web-0.shop.victim.svc.cluster.local",
    "10-9-0-2.victim.pod.cluster.local",
    "shop.victim.svc",
    "shop.victim.svc.corp.example",
    "victim.cluster.local",
)
"""Of another namespace; DNS knows them all, as 10.9.0.2."""
NO_NAMES = (
    r"shop.victim.svc.cluster.\108ocal",
    "shop.victim.svc.cluster\u3002local",
    "shop.victim.svc.cluster.\uff4cocal",
    "[::1]",
    "fe80::1%eth0",
)
"""A library that asks DNS reads the first three as a name of another namespace."""
RECORDS = {
    "loopback": {"A": ["127.0.0.1"]},
    "loopback-net": {"A": ["127.9.9.9"]},
    "node": {"A": [NODE]},
    "broadcast": {"A": ["10.9.0.255"]},
    "everywhere": {"A": ["0.0.0.0"]},
    "this-net": {"A": ["0.1.2.3"]},
    "all-ones": {"A": ["255.255.255.255"]},
    "multicast": {"A": ["224.0.0.1"]},
    "metadata": {"A": ["169.254.169.254"]},
    "azure": {"A": ["168.63.129.16"]},
    "six": {"AAAA": ["::1"]},
    "six-none": {"AAAA": ["::"]},
    "six-node": {"AAAA": ["fd09::1"]},
    "six-link": {"AAAA": ["fe80::1"]},
    "mapped": {"AAAA": ["::ffff:127.0.0.1"]},
    "mapped-node": {"AAAA": ["::ffff:10.9.0.1"]},
    "compatible": {"AAAA": ["::127.0.0.1"]},
    "nat64": {"AAAA": ["64:ff9b::7f00:1"]},
    "six-to-four": {"AAAA": ["2002:7f00:1::"]},
    "aws": {"AAAA": ["fd00:ec2::254"]},
    "to-victim": {"CNAME": ["shop.victim.svc.cluster.local"]},
    "by-way-of": {"CNAME": ["middle.test"]},
    "to-node": {"CNAME": ["node.test"]},
    "cluster-ip": {"A": ["10.9.0.4"]},
    "api-server": {"A": ["10.9.0.3"]},
    "class-e": {"A": ["240.0.0.1"]},
    "discard": {"AAAA": ["100::1"]},
    "site-local": {"AAAA": ["fec0::1"]},
}
GOOD = {
    "good": {"A": [NEAR]},
    "good-six": {"AAAA": ["fd09::2"]},
    "mixed": {"A": ["127.0.0.1", NODE, NEAR], "AAAA": ["::1"]},
    "alias": {"CNAME": ["good.test"]},
}
MANAGED = {"endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io"}
OWNER = {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "1", "controller": True}
ALLOW = "--allow-external-name"


def test_no_external_name_leads_to_the_node_or_into_another_namespace(tmp_path: Path) -> None:
    """Neither by a spelling of an address, nor by a name of the cluster, nor by what DNS answers."""
    spelled = {f"s{index}": text for index, text in enumerate(SPELLINGS)}
    foreign = {f"f{index}": text for index, text in enumerate(FOREIGN)}
    no_names = {f"n{index}": text for index, text in enumerate(NO_NAMES)}
    with node(tmp_path) as here:
        for text in (*SPELLINGS, "evil"):
            here.records[text.lower().rstrip(".")] = {"A": ["127.0.0.1"]}
        for text in FOREIGN:
            here.records[text.lower().rstrip(".")] = {"A": [NEAR]}
        here.records |= {f"{name}.test": records for name, records in (RECORDS | GOOD).items()}
        here.records["middle.test"] = {"CNAME": ["shop.victim.svc.cluster.local"]}
        here.records["shop.evil.svc.cluster.local"] = {"A": [NEAR]}
        named = spelled | foreign | no_names | {name: f"{name}.test" for name in RECORDS | GOOD}
        named["own-service"] = "shop.evil.svc.cluster.local"
        objects = [
            ingress(*named),
            *(service(name, external) for name, external in named.items()),
            service("shop", namespace="victim", clusterIP=THIRD),
            service("kubernetes", namespace="default", clusterIP="10.9.0.200"),
            slice_of("kubernetes", OTHER, namespace="default"),
        ]
        manifests = written(tmp_path, *objects)
        with here.running("ingress", "--manifests", manifests, ALLOW, "--cluster-domain", "corp.example"):
            here.until(lambda: here.ask("good.example") == NEAR)
            assert here.ask("good-six.example") == "fd09::2"
            assert here.ask("mixed.example") == NEAR, "the addresses that may be connected to are"
            assert here.ask("alias.example") == NEAR
            assert here.ask("own-service.example") == NEAR
            for name in (*spelled, *foreign, *RECORDS):
                assert here.ask(f"{name}.example") == "503", (name, named[name])
                assert f"evil/{name} leads to" in here.log, name
            for name in no_names:
                assert here.ask(f"{name}.example") == "503", (name, named[name])
                assert f"object=evil/{name} " in here.log, name
        assert here.hits == []


def test_without_the_flag_no_external_name_is_followed(tmp_path: Path) -> None:
    with node(tmp_path) as here:
        here.records["good.test"] = {"A": [NEAR]}
        manifests = written(
            tmp_path, ingress("good", "web"), service("good", "good.test"), service("web"), slice_of("web", NEAR)
        )
        with here.running("ingress", "--manifests", manifests):
            here.until(lambda: here.ask("web.example") == NEAR)
            assert here.ask("good.example") == "503"


def test_dns_that_changes_its_answer_leads_nowhere_else(tmp_path: Path) -> None:
    """First a neighbour, then the node in four ways, then a neighbour again; and an answer that never stays."""
    with node(tmp_path) as here:
        name = here.records["turning.test"] = {"A": [NEAR]}
        manifests = written(tmp_path, ingress("turning"), service("turning", "turning.test"))
        with here.running("ingress", "--manifests", manifests, ALLOW):
            here.until(lambda: here.ask("turning.example") == NEAR)
            for records in (
                {"A": ["127.0.0.1"]},
                {"A": [NODE]},
                {"AAAA": ["::1"]},
                {"CNAME": ["x.victim.svc.cluster.local"]},
            ):
                name.clear()
                name.update(records)
                here.records["x.victim.svc.cluster.local"] = {"A": [OTHER]}
                here.until(lambda: here.ask("turning.example") == "503")
                name.clear()
                name["A"] = [OTHER]
                here.until(lambda: here.ask("turning.example") == OTHER)
            end = time.monotonic() + 12
            while time.monotonic() < end:
                name["A"] = [NODE if name["A"] == [NEAR] else NEAR]
                assert here.ask("turning.example") in (NEAR, OTHER, "503")
        assert here.hits == []


def test_slices_by_hand_lead_neither_to_the_node_nor_to_the_api_server(tmp_path: Path) -> None:
    """Also when an address becomes the node's later; a range of the operator opens them."""
    refused = {
        "loopback": "127.0.0.1",
        "six": "::1",
        "node": NODE,
        "node-six": "fd09::1",
        "mapped": "::ffff:10.9.0.1",
        "broadcast": "10.9.0.255",
        "none": "0.0.0.0",  # refused, not bound
        "ones": "255.255.255.255",
        "multicast": "224.0.0.1",
        "metadata": "169.254.169.254",
        "site-local": "fec0::1",
        "discard": "100::1",
        "dummy": "100:0:0:1::1",
        "orchid": "2001:10::1",
        "segment": "5f00::1",
        "class-e": "240.0.0.1",
        "class-e-last": "255.255.255.254",
        "dslite": "192.0.0.1",
        "nat64-local": "64:ff9b:1::7f00:1",
        "any-ip": "10.77.0.9",
        "cluster-ip": THIRD,
        "api": "10.9.0.200",
    }
    with node(tmp_path) as here:
        run("ip route add local 10.77.0.0/24 dev lo")
        objects = [
            ingress(*refused, "web", "some"),
            *(service(name) for name in (*refused, "web", "some")),
            *(
                slice_of(name, address, pod="x", labels=MANAGED, ownerReferences=[OWNER])
                for name, address in refused.items()
            ),
            slice_of("web", NEAR),
            slice_of("some", NODE, OTHER),
            service("shop", namespace="victim", clusterIP=THIRD),
            service("kubernetes", namespace="default", clusterIP="10.9.0.200"),
        ]
        manifests = written(tmp_path, *objects)
        with here.running("ingress", "--manifests", manifests):
            here.until(lambda: here.ask("web.example") == NEAR)
            assert {here.ask("some.example") for _ in range(6)} == {OTHER}
            for name in refused:
                assert here.ask(f"{name}.example") == "503", name
                assert name == "mapped" or f"EndpointSlice evil/{name}-1 names" in here.log, name
            run(f"ip addr add {NEAR}/32 dev lo")
            here.until(lambda: here.ask("web.example") == "503")
            here.hits.clear()
            assert here.ask("web.example") == "503"
            run(f"ip addr del {NEAR}/32 dev lo")
            here.until(lambda: here.ask("web.example") == NEAR)
        assert here.hits == []
        opened = ("--allow-target-range", f"{NODE}/32", "--allow-target-range", "127.0.0.0/8")
        with here.running("ingress", "--manifests", manifests, *opened):
            here.until(lambda: here.ask("node.example") == "NODE")
            assert here.ask("loopback.example") == "NODE"
            assert here.ask("metadata.example") == "503"


def test_a_pod_with_the_node_s_address_is_a_backend_and_a_slice_that_claims_one_is_not(tmp_path: Path) -> None:
    """At an API server: a Pod proves it, labels, owners and names do not. The refusal is told by an Event."""
    pod: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "evil", "labels": {"app": "agent"}},
        "spec": {"hostNetwork": True, "containers": [{"name": "main", "image": "none"}]},
        "status": {"podIP": NODE, "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }
    plain = {**pod, "metadata": {"name": "plain", "namespace": "evil"}, "status": {**pod["status"], "podIP": OTHER}}
    foreign = {**pod, "metadata": {"name": "foreign", "namespace": "victim"}}
    reserved = {
        **pod,
        "metadata": {"name": "reserved", "namespace": "evil"},
        "status": {**pod["status"], "podIP": CLASS_E},
    }
    with node(tmp_path) as here, up(tmp_path / "cluster"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)
        names = ("agent", "bare", "ghost", "other", "far", "api", "bare-e")
        cluster_ip = kubectl("get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
        kubectl("create", "namespace", "evil")
        kubectl("create", "namespace", "victim")
        objects = [
            ingress(*names, "reserved"),
            pod,
            plain,
            reserved,
            foreign,
            service("agent", selector={"app": "agent"}),
            *(service(name) for name in names[1:]),
            slice_of("bare", NODE),
            slice_of("ghost", NODE, pod="no-such-pod"),
            slice_of("other", NODE, pod="plain"),
            slice_of("far", NODE, pod="foreign"),
            slice_of("api", cluster_ip),
            slice_of("bare-e", CLASS_E),
            service("reserved"),
            slice_of("reserved", CLASS_E, pod="reserved"),
        ]
        kubectl("apply", "-f", "-", stdin=as_text(*objects))
        config = str(tmp_path / "cluster" / "ingress.kubeconfig")
        with here.running("ingress", "--kubeconfig", config):
            here.until(lambda: here.ask("agent.example") == "NODE")
            here.until(lambda: here.ask("reserved.example") == CLASS_E)
            here.hits.clear()

            def told() -> set[str]:
                events = json.loads(kubectl("get", "events", "-n", "evil", "-o", "json"))["items"]
                found = (each for each in events if each["reason"] == REASON)
                return {
                    each["message"].partition("names ")[0]
                    for each in found
                    if each["involvedObject"]["kind"] == "Ingress"
                }

            here.until(lambda: len(told()) == len(names) - 1)
            for name in names[1:]:
                assert here.ask(f"{name}.example") == "503", name
            assert here.hits == []
            kubectl("delete", "pod", "agent", "-n", "evil", "--wait=false")
            here.until(lambda: here.ask("agent.example") == "503")
