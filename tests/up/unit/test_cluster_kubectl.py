"""Real kubectl, an old one and a current one, against a real `vipwire up`."""

import json
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fakes.waiting import until
from tests.up.unit.cluster_process import CLIENTS, WHEEL, Kubectl, up

from vipwire_up.api.kinds.catalogue import SERVED
from vipwire_up.api.objects.schema import Type

pytestmark = pytest.mark.slow

WEB = """
apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec:
  selector: {app: web}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: https, port: 443}
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web-1, labels: {app: web}}
spec:
  containers: [{name: web, image: none, ports: [{containerPort: 8080, name: http}]}]
status: {podIP: 10.1.0.5, phase: Running, conditions: [{type: Ready, status: "True"}]}
"""
PROBED = """
apiVersion: v1
kind: Pod
metadata: {name: probed, annotations: {vipwire.io/address: 127.0.0.1}}
spec:
  containers: [{name: web, image: none, readinessProbe: {tcpSocket: {port: PORT}, periodSeconds: 1}}]
"""
NEW_EVENT = """
apiVersion: events.k8s.io/v1
kind: Event
metadata: {name: scaled}
eventTime: NOW
reportingController: example.com/operator
reportingInstance: operator-1
action: Scaling
reason: Scaled
regarding: {kind: Service, namespace: test, name: web}
note: from 1 to 2
type: Normal
"""
GATEWAYS = """
apiVersion: GROUP
kind: GatewayClass
metadata: {name: edge}
spec: {controllerName: vipwire.io/gateway}
---
apiVersion: GROUP
kind: Gateway
metadata: {name: edge}
spec: {gatewayClassName: edge, listeners: [{name: http, port: 80, protocol: HTTP}]}
---
apiVersion: GROUP
kind: HTTPRoute
metadata: {name: web}
spec: {parentRefs: [{name: edge}], hostnames: [a.test], rules: [{backendRefs: [{name: web, port: 80}]}]}
---
apiVersion: GROUP
kind: ReferenceGrant
metadata: {name: web}
spec:
  from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}]
  to: [{group: "", kind: Service}]
"""
VERSIONS = "jsonpath={.items[*].metadata.resourceVersion}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    data = tmp_path_factory.mktemp("cluster")
    with up(data):
        yield data


@pytest.fixture(params=CLIENTS)
def kubectl(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Kubectl:
    """A client whose namespace is the test's own."""
    namespace = f"test-{tmp_path.name.replace('_', '-').lower()[-40:].strip('-')}"
    config = yaml.safe_load((folder / "admin.kubeconfig").read_text())
    config["contexts"][0]["context"]["namespace"] = namespace
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    client = Kubectl(request.param, tmp_path / "kubeconfig", tmp_path)
    client("create", "namespace", namespace)
    return client


def test_a_current_client_is_among_them() -> None:
    assert str(WHEEL) in CLIENTS


def test_apply_get_describe_delete(kubectl: Kubectl) -> None:
    assert "service/web created" in kubectl("apply", "-f", "-", stdin=WEB)
    assert "service/web unchanged" in kubectl("apply", "-f", "-", stdin=WEB)
    assert "service/web configured" in kubectl("apply", "-f", "-", stdin=WEB.replace("8080", "9090"))
    header, row = kubectl("get", "svc", "-o", "wide").splitlines()
    assert header.split() == ["NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE", "SELECTOR"]
    assert row.split()[2].startswith("10.96.")
    assert [row.split()[column] for column in (0, 1, 3, 4)] == ["web", "ClusterIP", "<none>", "80/TCP,443/TCP"]
    described = kubectl("describe", "svc", "web")
    assert "TargetPort:" in described
    assert "9090/TCP" in described
    found = json.loads(kubectl("get", "service/web", "-o", "json"))
    assert [port["targetPort"] for port in found["spec"]["ports"]] == [9090, 443]
    assert "https" in kubectl("get", "svc", "web", "-o", "yaml")
    assert "deleted" in kubectl("delete", "-f", "-", stdin=WEB)
    assert 'services "web" not found' in kubectl.refused("get", "svc", "web")
    namespace = found["metadata"]["namespace"]
    kubectl("delete", "namespace", namespace)
    assert "NotFound" in kubectl.refused("get", "namespace", namespace)


def test_apply_takes_out_what_a_manifest_does_not_say_any_more(kubectl: Kubectl) -> None:
    first = WEB.replace("{app: web}}", "{app: web, more: yes-please}}")
    kubectl("apply", "-f", "-", stdin=first)
    kubectl("label", "svc", "web", "by=hand")
    kubectl("apply", "-f", "-", stdin=WEB.replace("  - {name: https, port: 443}\n", ""))
    found = json.loads(kubectl("get", "svc", "web", "-o", "json"))
    assert [port["name"] for port in found["spec"]["ports"]] == ["http"]
    assert found["metadata"]["labels"] == {"app": "web", "by": "hand"}


def test_server_side_apply_conflicts_and_force(kubectl: Kubectl) -> None:
    apply = ("apply", "--server-side", "-f", "-")
    assert "serverside-applied" in kubectl(*apply, stdin=WEB)
    kubectl("patch", "svc", "web", "--type=merge", "-p", '{"spec":{"sessionAffinity":"ClientIP"}}')
    more = WEB.replace("spec:\n", "spec:\n  sessionAffinity: None\n")
    said = kubectl.refused(*apply, stdin=more)
    assert 'conflict with "kubectl-patch" using v1: .spec.sessionAffinity' in said.replace("\n", "")
    kubectl(*apply, "--force-conflicts", stdin=more)
    assert kubectl("get", "svc", "web", "-o", "jsonpath={.spec.sessionAffinity}") == "None"
    kubectl("apply", "--server-side", "--field-manager=other", "-f", "-", stdin=WEB)


def test_create_expose_and_the_other_ways_to_make_objects(kubectl: Kubectl) -> None:
    kubectl("create", "-f", "-", stdin=POD)
    kubectl("expose", "pod", "web-1", "--port=80", "--target-port=http", "--name=exposed")
    assert kubectl("get", "svc", "exposed", "-o", "jsonpath={.spec.selector.app}") == "web"
    kubectl("create", "service", "nodeport", "front", "--tcp=80:8080")
    kubectl("create", "service", "externalname", "out", "--external-name=example.com")
    kubectl("create", "secret", "generic", "secret", "--from-literal=key=value")
    kubectl("create", "configmap", "config", "--from-literal=key=value")
    kubectl("create", "ingress", "way", "--rule=example.com/path=front:80")
    shown = kubectl("get", "all,ingress,configmap,secret")
    for name in ("pod/web-1", "service/front", "service/out", "ingress.networking.k8s.io/way", "configmap/config"):
        assert name in shown
    assert kubectl("get", "secret", "secret", "-o", "jsonpath={.data.key}") == "dmFsdWU="
    assert "example.com" in kubectl("describe", "ingress", "way")


def test_patches_labels_annotations_edit_and_replace(kubectl: Kubectl, tmp_path: Path) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    kubectl("label", "svc", "web", "tier=front")
    kubectl("annotate", "svc", "web", "note=here")
    kubectl("patch", "svc", "web", "-p", '{"spec":{"ports":[{"port":80,"name":"renamed"}]}}')
    kubectl("patch", "svc", "web", "--type=json", "-p", '[{"op":"remove","path":"/metadata/annotations/note"}]')
    kubectl.environment["KUBE_EDITOR"] = "sed -i s/renamed/edited/"
    kubectl("edit", "svc", "web")
    found = json.loads(kubectl("get", "svc", "-l", "tier=front", "-o", "json"))["items"][0]
    assert [port["name"] for port in found["spec"]["ports"]] == ["edited", "https"]
    assert "note" not in found["metadata"]["annotations"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(found))
    kubectl("replace", "-f", str(old), "--save-config")
    assert "the object has been modified" in kubectl.refused("replace", "-f", str(old))


def test_watch_and_wait(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=POD)
    with kubectl.following("get", "pods", "-w") as lines:
        lines.until("web-1")
        kubectl("label", "pod", "web-1", "a=b")
        assert "1/1" in lines.until("web-1")
    kubectl("wait", "--for=condition=Ready", "pod/web-1", "--timeout=30s")
    kubectl("delete", "pod", "web-1")  # which watches until it is gone
    assert "NotFound" in kubectl.refused("get", "pod", "web-1")


def test_explain_and_what_is_served(kubectl: Kubectl) -> None:
    told = kubectl("explain", "service.spec.ports")
    assert "Port to which clients connect." in told
    assert "endpointslices" in kubectl("api-resources", "--api-group=discovery.k8s.io", "-o", "name")
    assert "networking.k8s.io/v1" in kubectl("api-versions")
    assert "+vipwire." in kubectl("get", "nodes")  # the column VERSION
    assert kubectl("auth", "can-i", "create", "services") == "yes\n"
    assert "[*]" in kubectl("auth", "can-i", "--list")
    assert "cannot impersonate" in kubectl.refused("get", "svc", "--as=viewer")
    kubectl("create", "-f", "-", stdin=POD)
    assert "vipwire runs no Pods" in kubectl.refused("logs", "web-1")


def test_errors_name_the_field(kubectl: Kubectl) -> None:
    assert 'spec.type: Unsupported value: "Other"' in kubectl.refused(
        "apply", "-f", "-", "--validate=false", stdin=WEB.replace("spec:\n", "spec:\n  type: Other\n")
    )
    said = kubectl.refused("apply", "-f", "-", stdin=WEB.replace("spec:\n", "spec:\n  selectors: {}\n"))
    assert "selectors" in said
    said = kubectl.refused("create", "service", "clusterip", "Bad_Name", "--tcp=80")
    assert 'metadata.name: Invalid value: "Bad_Name": a lowercase RFC 1123 label' in said


def test_of_a_manifest_with_kinds_that_are_not_here_the_others_are_made(kubectl: Kubectl) -> None:
    foreign = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n"
    done = kubectl.run("apply", "-f", "-", stdin=f"{foreign}---{WEB}")
    assert done.returncode != 0
    assert 'no matches for kind "Deployment" in version "apps/v1"' in done.stderr
    assert kubectl("get", "svc", "-o", "name").split() == ["service/web"]


def test_a_dry_run_of_the_server_and_pages(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", "--dry-run=server", stdin=WEB)
    assert "NotFound" in kubectl.refused("get", "svc", "web")
    for number in range(5):
        kubectl("create", "service", "clusterip", f"s{number}", "--tcp=80")
    assert len(kubectl("get", "svc", "--chunk-size=2", "-o", "name").splitlines()) == 5
    assert kubectl("get", "svc", "--field-selector=metadata.name=s3", "-o", "name").split() == ["service/s3"]


def test_deletion_in_the_foreground_background_and_not_of_dependents(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    for mode, left in (("foreground", ""), ("background", ""), ("orphan", "configmap/child")):
        owner = json.loads(kubectl("create", "configmap", "owner", "--from-literal=a=b", "-o", "json"))
        reference = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]
        child = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child", "ownerReferences": reference}}
        kubectl("create", "-f", "-", stdin=json.dumps(child))
        delete = json.dumps({"propagationPolicy": mode.capitalize(), "apiVersion": "v1", "kind": "DeleteOptions"})
        uri = f"/api/v1/namespaces/{owner['metadata']['namespace']}/configmaps/owner"
        kubectl("delete", "--raw", uri, "-f", "-", stdin=delete)
        until(lambda: not kubectl("get", "configmap/owner", "--ignore-not-found", "-o", "name"), "deleted")
        if not left:
            until(lambda: not kubectl("get", "configmap/child", "--ignore-not-found", "-o", "name"), "deleted")
        assert left in kubectl("get", "configmap", "-o", "name")


def test_a_manifest_goes_from_one_way_of_apply_to_the_other(kubectl: Kubectl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        pod = PROBED.replace("PORT", str(listening.getsockname()[1]))
        kubectl("apply", "-f", "-", stdin=pod)
        kubectl("wait", "--for=condition=Ready", "pod/probed", "--timeout=30s")
        for _ in range(3):  # the first takes over what the other way owned, status included; the next do without it
            said = kubectl.run("apply", "--server-side", "-f", "-", stdin=pod)
            assert (said.returncode, said.stderr) == (0, "")
        assert kubectl("get", "pod", "probed", "-o", "jsonpath={.status.podIP}") == "127.0.0.1"


def test_a_changed_manifest_goes_from_one_way_of_apply_to_the_other_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=WEB)
    kubectl("apply", "--server-side", "-f", "-", stdin=WEB.replace("8080", "9090"))
    less = WEB.replace("  - {name: https, port: 443}\n", "")
    kubectl("apply", "-f", "-", stdin=less)  # which compares with what the other way has applied
    found = json.loads(kubectl("get", "service/web", "-o", "json"))
    assert [(port["name"], port["targetPort"]) for port in found["spec"]["ports"]] == [("http", 8080)]


def test_events_of_both_groups_are_the_same(kubectl: Kubectl) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
    kubectl("apply", "-f", "-", stdin=NEW_EVENT.replace("NOW", now))
    assert "from 1 to 2" in kubectl("get", "events")
    rows = [kubectl("get", name, "--no-headers") for name in ("events.events.k8s.io", "events.v1.")]
    assert [row.split()[1:] for row in rows] == [["Normal", "Scaled", "service/web", "from", "1", "to", "2"]] * 2
    assert kubectl("get", "events.events.k8s.io", "-o", "jsonpath={.items[*].note}") == "from 1 to 2"
    assert kubectl("get", "events.v1.", "-o", "jsonpath={.items[*].message}") == "from 1 to 2"
    patch = json.dumps({"series": {"count": 5, "lastObservedTime": now}})
    kubectl("patch", "events.events.k8s.io", "scaled", "--type=merge", "-p", patch)
    assert kubectl("get", "events.v1.", "-o", "jsonpath={.items[*].series.count}") == "5"
    kubectl("delete", "events.events.k8s.io", "scaled")
    assert kubectl("get", "events", "-o", "name") == ""


def test_gateways_of_v1beta1_are_those_of_v1(kubectl: Kubectl) -> None:
    kinds = {
        "gateway": "spec.gatewayClassName",
        "httproute": "spec.hostnames[0]",
        "referencegrant": "spec.to[0].kind",
    }
    for version in ("v1beta1", "v1", "v1beta1"):
        group = f"gateway.networking.k8s.io/{version}"
        kubectl("apply", "-f", "-", stdin=GATEWAYS.replace("GROUP", group))
        before = kubectl("get", "gateways,httproutes,gatewayclasses", "-o", VERSIONS)
        kubectl("apply", "-f", "-", stdin=GATEWAYS.replace("GROUP", group))
        assert kubectl("get", "gateways,httproutes,gatewayclasses", "-o", VERSIONS) == before
        for kind, path in kinds.items():
            shown = kubectl(
                "get", f"{kind}s.{version}.gateway.networking.k8s.io", "-o", f"jsonpath={{.items[*].{path}}}"
            )
            assert shown in ("edge", "a.test", "Service"), kind
        shown = kubectl("get", f"gatewayclasses.{version}.gateway.networking.k8s.io", "edge", "-o", "json")
        assert json.loads(shown)["apiVersion"] == group
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=GATEWAYS.replace("GROUP", group))
    kubectl("delete", "-f", "-", stdin=GATEWAYS.replace("GROUP", group))


def test_explain_names_every_field_that_is_served(kubectl: Kubectl) -> None:
    for resource in SERVED:
        told = kubectl("explain", resource.plural, "--recursive", f"--api-version={resource.api_version}")
        words = set(told.split())
        assert {"FIELDS:", "apiVersion", "metadata"} <= words
        missing = {name for name in field_names(resource.type, set()) if name not in words}
        assert not missing, f"{resource.kind}: {missing}"


def field_names(kind: Type, seen: set[str]) -> set[str]:
    while kind.element is not None:
        kind = kind.element
    if kind.name in seen:
        return set()
    seen.add(kind.name)
    return set(kind.fields).union(*(field_names(each.type, seen) for each in kind.fields.values()))


def test_a_dry_run_answers_what_would_be_stored(kubectl: Kubectl) -> None:
    load_balancer = WEB.replace("spec:\n", "spec:\n  type: LoadBalancer\n  clusterIP: 10.96.0.77\n")
    for text in (load_balancer, POD.replace("none,", "none, resources: {limits: {cpu: 1500m, memory: 2048Mi}},")):
        dry = json.loads(kubectl("apply", "--dry-run=server", "-o", "json", "-f", "-", stdin=text))
        done = json.loads(kubectl("apply", "-o", "json", "-f", "-", stdin=text))
        for value in (dry, done):
            for port in value["spec"].get("ports", ()):
                assert 30000 <= port.pop("nodePort") < 32768  # which one is chance
        assert dry["spec"] == done["spec"]
        kubectl("delete", "-f", "-", stdin=text)
    said = kubectl.refused("apply", "--dry-run=server", "-f", "-", stdin=WEB.replace("80,", "0,"))
    assert "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive" in said


def test_unknown_fields_are_refused_told_or_passed_over(kubectl: Kubectl) -> None:
    unknown, apply = WEB.replace("spec:\n", "spec:\n  selectors: {}\n"), ("apply", "-f", "-")
    said = kubectl.refused(*apply, "--validate=true", stdin=unknown)  # old ones say so by themselves, from OpenAPI
    assert re.search(r'unknown field "(spec\.)?selectors"', said), said
    if not kubectl.is_current:
        return
    assert 'unknown field "spec.selectors"' in kubectl.refused(*apply, "--validate=strict", stdin=unknown)
    done = kubectl.run(*apply, "--validate=warn", stdin=unknown)
    assert (done.returncode, 'Warning: unknown field "spec.selectors"' in done.stderr) == (0, True)
    done = kubectl.run(*apply, "--validate=ignore", stdin=unknown)
    assert (done.returncode, done.stderr) == (0, "")
