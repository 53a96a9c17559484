"""`vipwire gateway` as a process, at a `vipwire up`: kinds with their validation, statuses, Events, rendering."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.ports import free_port
from tests.l7.configurations import check_configuration
from tests.l7.gateway.site import tls_secret
from tests.up.unit.cluster_process import CLIENTS, PATIENCE, Kubectl, up

COMMAND = (sys.executable, "-m", "vipwire", "gateway")
SERVICE = """
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {ports: [{port: 8080}]}
"""
CLASS = """
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: vipwire}
spec: {controllerName: vipwire.io/gateway}
"""
GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: default}
spec:
  gatewayClassName: vipwire
  listeners:
  - {name: http, port: HTTP, protocol: HTTP}
  - {name: https, port: HTTPS, protocol: HTTPS, tls: {certificateRefs: [{name: missing}]}}
  - {name: odd, port: 1234, protocol: HTTP, allowedRoutes: {kinds: [{kind: TCPRoute}]}}
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: default}
spec:
  parentRefs: [{name: edge, sectionName: http}, {name: edge, sectionName: nonsense}]
  hostnames: [a.example.com]
  rules:
  - {backendRefs: [{name: web, port: 8080}]}
  - {matches: [{path: {value: /gone}}], backendRefs: [{name: gone, port: 1}]}
"""


@contextmanager
def running(folder: Path, *flags: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the gateway."""
    common = ("--run-dir", str(folder / "run"), "--bind", "127.0.0.1", "--grace", "0.2", "--threads", "1")
    more = ("--metrics-bind-address", f"127.0.0.1:{free_port()}", "--allow-target-range", "127.0.0.0/8")
    with (
        (folder / "log").open("ab") as log,
        subprocess.Popen((*COMMAND, *common, *more, *flags), stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def until(found: Callable[[], bool], folder: Path, patience: float = PATIENCE) -> None:
    """Wait for a condition."""
    end = time.monotonic() + patience
    while not found():
        assert time.monotonic() < end, (folder / "log").read_text()[-3000:]
        time.sleep(0.1)


def code(port: int, host: str, path: str = "/", at: str = "127.0.0.1") -> str:
    """Ask; return the status code, 000 if nobody answers."""
    command = (
        "curl",
        "-s",
        "-o",
        "/dev/null",
        "-w",
        "%{http_code}",
        "-H",
        f"Host: {host}",
        f"http://{at}:{port}{path}",
    )
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE).stdout


def conditions(of: Any) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in of["conditions"]}


def test_a_site_in_vipwire_up_with_its_statuses(tmp_path: Path) -> None:
    http, https = free_port(), free_port()
    gateway = GATEWAY.replace("HTTPS,", f"{https},", 1).replace("port: HTTP,", f"port: {http},")
    with up(tmp_path / "cluster"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)

        def shown(*what: str) -> Any:
            return json.loads(kubectl("get", *what, "-o", "json"))

        kubectl(
            "apply",
            "-f",
            "-",
            stdin=f"{CLASS}---\n{gateway}---\n{ROUTE}---\n{SERVICE}",
        )
        rule = shown("httproute", "web")["spec"]["rules"][0]
        assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
        config = str(tmp_path / "cluster" / "ingress.kubeconfig")
        with running(tmp_path, "--kubeconfig", config, "--publish-address", "192.0.2.1"):
            until(lambda: code(http, "a.example.com") == "503", tmp_path)
            assert code(http, "a.example.com", "/gone") == "500"
            until(lambda: "conditions" in shown("gateway", "edge").get("status", {}), tmp_path)
            until(lambda: "parents" in shown("httproute", "web").get("status", {}), tmp_path)
            status = shown("gateway", "edge")["status"]
            assert status["addresses"] == [{"type": "IPAddress", "value": "192.0.2.1"}]
            assert conditions(status) == {
                "Accepted": ("True", "ListenersNotValid"),
                "Programmed": ("True", "Programmed"),
            }
            listeners = {each["name"]: each for each in status["listeners"]}
            assert [listeners[name]["attachedRoutes"] for name in ("http", "https", "odd")] == [1, 0, 0]
            assert conditions(listeners["https"])["ResolvedRefs"] == ("False", "InvalidCertificateRef")
            assert conditions(listeners["https"])["Programmed"] == ("False", "Invalid")
            assert conditions(listeners["odd"])["ResolvedRefs"] == ("False", "InvalidRouteKinds")
            assert not listeners["odd"].get("supportedKinds")
            first, second = shown("httproute", "web")["status"]["parents"]
            assert conditions(first) == {
                "Accepted": ("True", "Accepted"),
                "ResolvedRefs": ("False", "BackendNotFound"),
            }
            assert conditions(second)["Accepted"] == ("False", "NoMatchingParent")
            classed = shown("gatewayclass", "vipwire")["status"]
            assert conditions(classed)["Accepted"] == ("True", "Accepted")
            assert {"name": "HTTPRoute"} in classed["supportedFeatures"]
            until(lambda: "gone does not exist" in kubectl("get", "events"), tmp_path)
            kubectl("patch", "gateway", "edge", "--type=merge", "-p", '{"metadata": {"annotations": {"a": "b"}}}')
            before = {each["type"]: each for each in shown("gateway", "edge")["status"]["conditions"]}
            kubectl("apply", "-f", "-", stdin=tls_secret("missing", "a.example.com", namespace="default"))

            def programmed() -> bool:
                found = {each["name"]: each for each in shown("gateway", "edge")["status"]["listeners"]}
                return conditions(found["https"])["Programmed"] == ("True", "Programmed")

            until(programmed, tmp_path)
            after = {each["type"]: each for each in shown("gateway", "edge")["status"]["conditions"]}
            assert after["Programmed"]["lastTransitionTime"] == before["Programmed"]["lastTransitionTime"]
            kubectl("delete", "httproute", "web")
            until(lambda: code(http, "a.example.com") == "404", tmp_path)


def test_render_writes_what_haproxy_takes(tmp_path: Path) -> None:
    manifests, output = tmp_path / "manifests", tmp_path / "out"
    manifests.mkdir()
    gateway = GATEWAY.replace("HTTPS,", "8443,", 1).replace("port: HTTP,", "port: 8080,")
    (manifests / "all.yaml").write_text(f"{CLASS}---\n{gateway}---\n{ROUTE}---\n{SERVICE}")
    command = (*COMMAND, "render", "--manifests", str(manifests), "--output-dir", str(output))
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "warning: HTTPRoute default/web: spec.rules: BackendNotFound: the Service default/gone" in done.stderr
    check_configuration(output)


INGRESS = """
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: default}
spec:
  ingressClassName: vipwire
  rules:
  - host: b.example.com
    http: {paths: [{path: /in, pathType: Prefix, backend: {service: {name: web, port: {number: 8080}}}}]}
"""


def test_ingresses_and_gateways_are_served_by_one_haproxy(tmp_path: Path) -> None:
    http, https, own = free_port(), free_port(), free_port()
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    gateway = (
        GATEWAY.replace("HTTPS,", f"{https},", 1).replace("port: HTTP,", f"port: {http},").replace("1234", f"{own}")
    )
    (manifests / "all.yaml").write_text(f"{CLASS}---\n{gateway}---\n{ROUTE}---\n{SERVICE}---\n{INGRESS}")
    flags = ("--manifests", str(manifests), "--ingress", "--http", f"127.0.0.1:{own}", "--https", "")
    with running(tmp_path, *flags):
        until(lambda: code(own, "b.example.com", "/in") == "503", tmp_path)  # a Service without endpoints
        assert code(own, "b.example.com", "/out") == "404"
        assert code(own, "a.example.com") == "404"
        assert code(http, "a.example.com") == "503"
        assert code(http, "a.example.com", "/gone") == "500"
        assert code(http, "b.example.com", "/in") == "404"
        said = (tmp_path / "log").read_text()
        assert f"127.0.0.1:{own} is reserved for Ingresses" in said
        (manifests / "all.yaml").write_text(f"{CLASS}---\n{gateway}---\n{SERVICE}")
        until(lambda: code(own, "b.example.com", "/in") == "404", tmp_path)
        until(lambda: code(http, "a.example.com") == "404", tmp_path)


UDP = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: udp, namespace: default}
spec: {gatewayClassName: vipwire, listeners: [LISTENERS]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: UDPRoute
metadata: {name: udp, namespace: default}
spec: {parentRefs: [{name: udp}], rules: [{backendRefs: [{name: dns, port: 53}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: default}
spec: {ports: [{name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: default, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: dns, port: ENDPOINT, protocol: UDP}]
endpoints: [{addresses: [127.0.0.1]}]
"""


def datagram_socket(connected: int = 0) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.settimeout(0.3)
    if connected:
        made.connect(("127.0.0.1", connected))
    else:
        made.bind(("127.0.0.1", 0))
    return made


def source_of(client: socket.socket, pod: socket.socket) -> int:
    """Send to a Pod; return the port from which it comes, 0 if it does not, -1 if nobody listens."""
    with contextlib.suppress(TimeoutError):
        try:
            client.send(b"?")
        except ConnectionRefusedError:
            return -1
        return int(pod.recvfrom(10)[1][1])
    return 0


def test_udp_clients_outlive_a_gateway_that_is_killed(tmp_path: Path) -> None:
    first, second = free_port(), free_port()
    manifests = tmp_path / "manifests"
    manifests.mkdir()
    with datagram_socket() as pod, datagram_socket(first) as client, datagram_socket(second) as other:

        def put(*ports: int) -> None:
            listeners = ", ".join(f"{{name: at-{port}, port: {port}, protocol: UDP}}" for port in ports)
            text = UDP.replace("LISTENERS", listeners).replace("ENDPOINT", str(pod.getsockname()[1]))
            (manifests / "all.yaml").write_text(f"{CLASS}---\n{text}")

        put(first)
        with running(tmp_path, "--manifests", str(manifests)) as process:
            until(lambda: source_of(client, pod) > 0, tmp_path)
            source = source_of(client, pod)
            process.kill()
            process.wait()
            assert source_of(client, pod) == source
        with running(tmp_path, "--manifests", str(manifests)):
            put(first, second)
            until(lambda: source_of(other, pod) > 0, tmp_path)
            assert source_of(client, pod) == source
        until(lambda: source_of(client, pod) == -1, tmp_path)


POOLED = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: NAME, namespace: default}
spec: {gatewayClassName: vipwire, addresses: [ADDRESSES], listeners: [{name: http, port: PORT, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME, namespace: default}
spec:
  parentRefs: [{name: NAME}]
  hostnames: [NAME.example.com]
  rules: [{backendRefs: [{name: web, port: 8080}]}]
"""


def test_gateways_have_addresses_of_the_range_of_vipwire_up(tmp_path: Path) -> None:
    """Each has all ports of its own address, `spec.addresses` may name one, and what is given back is given on."""
    port = free_port()

    def pooled(name: str, addresses: str = "") -> str:
        return POOLED.replace("NAME", name).replace("ADDRESSES", addresses).replace("PORT", str(port))

    with up(tmp_path / "cluster", "--load-balancer-range", "127.8.7.0/31"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)

        def said(name: str) -> tuple[list[str], str]:
            status = json.loads(kubectl("get", "gateway", name, "-o", "json")).get("status", {})
            found = [each["value"] for each in status.get("addresses", ())]
            return found, conditions(status).get("Programmed", ("", ""))[1] if "conditions" in status else ""

        kubectl("apply", "-f", "-", stdin=f"{CLASS}---{SERVICE}---{pooled('asks', '{value: 127.8.7.0}')}")
        kubectl("apply", "-f", "-", stdin=f"{pooled('first')}")
        config = str(tmp_path / "cluster" / "ingress.kubeconfig")
        with running(tmp_path, "--kubeconfig", config):
            until(lambda: said("first") == (["127.8.7.1"], "Programmed"), tmp_path)
            assert said("asks") == (["127.8.7.0"], "Programmed")
            kubectl("apply", "-f", "-", stdin=f"{pooled('late')}")
            until(lambda: said("late") == ([], "AddressNotAssigned"), tmp_path)
            for address, own, other in (("127.8.7.0", "asks", "first"), ("127.8.7.1", "first", "asks")):
                until(lambda: code(port, f"{own}.example.com", at=address) == "503", tmp_path)  # noqa: B023
                assert code(port, f"{other}.example.com", at=address) == "404"
            kubectl("delete", "gateway", "first")
            until(lambda: said("late") == (["127.8.7.1"], "Programmed"), tmp_path)
            until(lambda: code(port, "late.example.com", at="127.8.7.1") == "503", tmp_path)
        assert "late-vipwire" in kubectl("get", "services", "-o", "name")


NAMESPACES = {"infra": "infra", "app-backend": "backend", "web-backend": "backend"}
"""The suite's namespaces, behind `gateway-conformance-`, with their label."""
LETS_IN = {
    "same-namespace": "{from: Same}",
    "all-namespaces": "{from: All}",
    "backend-namespaces": "{from: Selector, selector: {matchLabels: {gateway-conformance: backend}}}",
}


def base_manifests(http: int, https: int, other: int) -> str:
    """Write what the official suite applies first, as far as it concerns a controller; its ports are ours."""
    head = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: NAME, namespace: "
    head += "gateway-conformance-infra}\nspec: {gatewayClassName: CLASS, listeners: [LISTENERS]}"
    tls = "tls: {certificateRefs: [{group: '', kind: Secret, name: pair, namespace: gateway-conformance-infra}]}"
    gateways = {
        name: f"{{name: http, port: {http}, protocol: HTTP, allowedRoutes: {{namespaces: {allowed}}}}}"
        for name, allowed in LETS_IN.items()
    }
    gateways["same-namespace-with-http-listener-on-8080"] = f"{{name: http, port: {other}, protocol: HTTP}}"
    gateways["same-namespace-with-https-listener"] = (
        f"{{name: https, port: {https}, protocol: HTTPS, {tls}}}, "
        f"{{name: https-with-hostname, port: {https}, hostname: second-example.org, protocol: HTTPS, {tls}}}"
    )
    made = [
        f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: gateway-conformance-{name}, labels: "
        f"{{gateway-conformance: {label}}}}}"
        for name, label in NAMESPACES.items()
    ]
    made += [
        head.replace("NAME", name).replace("CLASS", "vipwire").replace("LISTENERS", listeners)
        for name, listeners in gateways.items()
    ]
    ports = "[{name: first-port, port: 8080, targetPort: 3000}, {name: second-port, port: 8081, targetPort: 3001, "
    ports += "appProtocol: kubernetes.io/h2c}, {name: third-port, port: 8082, appProtocol: kubernetes.io/ws}]"
    for namespace, name in (("infra", "infra-backend-v1"), ("web-backend", "web-backend")):
        meta = f"{{name: {name}, namespace: gateway-conformance-{namespace}}}"
        spec = f"{{selector: {{app: {name}}}, ports: {ports}}}"
        made.append(f"apiVersion: v1\nkind: Service\nmetadata: {meta}\nspec: {spec}")
        made.append(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n"
            f"metadata: {{name: {name}, namespace: gateway-conformance-{namespace}}}\nspec: {{parentRefs: ["
            + ", ".join(f"{{name: {each}, namespace: gateway-conformance-infra}}" for each in gateways)
            + f"], rules: [{{backendRefs: [{{name: {name}, port: 8080}}]}}]}}"
        )
    return "\n---\n".join((*made, tls_secret("pair", "example.org", namespace="gateway-conformance-infra")))


def test_the_suites_base_manifests_are_taken_and_ready(tmp_path: Path) -> None:
    """What the suite waits for before its first case: the class by name, and all its Gateways with addresses."""
    http, https, other = free_port(), free_port(), free_port()
    with up(tmp_path / "cluster", "--load-balancer-range", "127.8.9.0/28"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)
        space = ("-n", "gateway-conformance-infra", "-o", "json")
        with running(tmp_path, "--kubeconfig", str(tmp_path / "cluster" / "ingress.kubeconfig")):
            kubectl("apply", "-f", "-", stdin=CLASS)
            kubectl("wait", "gatewayclass/vipwire", "--for=condition=Accepted", "--timeout=60s")
            kubectl("apply", "-f", "-", stdin=base_manifests(http, https, other))
            for condition in ("Accepted", "Programmed"):
                waits = ("wait", "gateways", "--all", f"--for=condition={condition}", "--timeout=60s")
                kubectl(*waits, "-n", "gateway-conformance-infra")
            found = json.loads(kubectl("get", "gateways", *space))["items"]
            addresses = {each["metadata"]["name"]: each["status"]["addresses"][0]["value"] for each in found}
            assert len(set(addresses.values())) == len(found) == 5
            for each in found:
                for of in (each["status"], *each["status"]["listeners"]):
                    assert {one["observedGeneration"] for one in of["conditions"]} == {1}

            def counts() -> dict[str, list[int]]:
                made = json.loads(kubectl("get", "gateways", *space))["items"]
                return {
                    each["metadata"]["name"]: [one["attachedRoutes"] for one in each["status"]["listeners"]]
                    for each in made
                }

            wanted = {"same-namespace": [1], "all-namespaces": [2], "backend-namespaces": [1]}
            wanted |= {"same-namespace-with-http-listener-on-8080": [1]}
            wanted |= {"same-namespace-with-https-listener": [1, 1]}
            until(lambda: counts() == wanted, tmp_path)
            for name, address in addresses.items():
                if not name.endswith(("8080", "https-listener")):
                    assert code(http, "any.org", at=address) == "503"
            assert code(other, "any.org", at=addresses["same-namespace-with-http-listener-on-8080"]) == "503"
            features = json.loads(kubectl("get", "gatewayclass", "vipwire", "-o", "json"))["status"]
            assert {"Gateway", "HTTPRoute", "ReferenceGrant", "TLSRoute", "GRPCRoute"} <= {
                each["name"] for each in features["supportedFeatures"]
            }
            kubectl("delete", "namespace", *(f"gateway-conformance-{each}" for each in NAMESPACES), "--timeout=60s")
            assert not json.loads(kubectl("get", "services", "-A", "-o", "json"))["items"][1:]


PODS = """
apiVersion: v1
kind: Service
metadata: {name: vipwire-gateway, namespace: kube-system}
spec: {clusterIP: None, ports: [{port: 10255}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: vipwire-gateway-1, namespace: kube-system, labels: {kubernetes.io/service-name: vipwire-gateway}}
addressType: IPv4
endpoints: [{addresses: [192.0.2.10], nodeName: one}]
"""


def free_range(count: int) -> str:
    """Find ports in a row that nobody has."""
    found = [free_port()]
    while len(found) < count:
        port = free_port()
        found = [*found, port] if port == found[-1] + 1 else [port]
    return f"{found[0]}-{found[-1]}"


def test_each_gateway_has_a_service_of_its_own(tmp_path: Path) -> None:
    """Gateways with the same port and host: a Service leads each to a port of the nodes that is its own."""
    ports = free_range(4)
    with up(tmp_path / "cluster", "--load-balancer-range", "198.51.100.0/28"):
        kubectl = Kubectl(CLIENTS[0], tmp_path / "cluster" / "admin.kubeconfig", tmp_path)

        def shown(*what: str) -> Any:
            return json.loads(kubectl("get", *what, "-o", "json"))

        def listening(name: str) -> dict[int, int]:
            return {each["port"]: each["targetPort"] for each in shown("service", f"{name}-own")["spec"]["ports"]}

        def programmed(name: str) -> bool:
            status = shown("gateway", name).get("status", {})
            return conditions(status).get("Programmed") == ("True", "Programmed") if "conditions" in status else False

        def made(name: str, more: str = "") -> str:
            text = POOLED.replace("addresses: [ADDRESSES], ", more).replace("gatewayClassName: vipwire", "CLASS")
            text = text.replace("hostnames: [NAME.example.com]", "").replace("NAME", name).replace("PORT", "80")
            rule = f"[{{matches: [{{path: {{value: /{name}}}}}], backendRefs: [{{name: web, port: 8080}}]}}]"
            text = text.replace("[{backendRefs: [{name: web, port: 8080}]}]", rule)
            return text.replace("CLASS", "gatewayClassName: own")

        classed = CLASS.replace("vipwire.io/gateway", "example.com/own").replace("name: vipwire", "name: own")
        infra = "infrastructure: {labels: {team: blue}, annotations: {a.example/b: c}}, "
        kubectl("apply", "-f", "-", stdin=f"{classed}---{SERVICE}---{PODS}---{made('a', infra)}---{made('b')}")
        config = str(tmp_path / "cluster" / "admin.kubeconfig")
        flags = ("--controller", "example.com/own", "--services", "kube-system/vipwire-gateway")
        with running(tmp_path, "--kubeconfig", config, *flags, "--service-ports", ports):
            until(lambda: programmed("a") and programmed("b"), tmp_path)
            addresses = {shown("gateway", name)["status"]["addresses"][0]["value"] for name in "ab"}
            assert len(addresses) == 2
            service = shown("service", "a-own")
            assert {service["status"]["loadBalancer"]["ingress"][0]["ip"]} < addresses
            assert service["metadata"]["labels"] == {"team": "blue", "gateway.networking.k8s.io/gateway-name": "a"}
            assert service["metadata"]["annotations"]["a.example/b"] == "c"
            assert service["spec"]["externalTrafficPolicy"] == "Local"
            at = {name: listening(name)[80] for name in "ab"}
            for name, other in ("ab", "ba"):
                until(lambda: code(at[name], "any.org", f"/{name}") == "503", tmp_path)  # noqa: B023
                assert code(at[name], "any.org", f"/{other}") == "404"

            def slices(name: str) -> list[Any]:
                return list(shown("endpointslices", "-l", f"kubernetes.io/service-name={name}-own")["items"])

            until(lambda: len(slices("a")) == 1, tmp_path)
            (found,) = slices("a")
            assert found["ports"] == [{"name": "tcp-80", "port": at["a"], "protocol": "TCP"}]
            assert [(each["addresses"], each["nodeName"]) for each in found["endpoints"]] == [(["192.0.2.10"], "one")]
            kubectl("apply", "-f", "-", stdin=PODS.replace("192.0.2.10", "192.0.2.11"))
            until(lambda: slices("a")[0]["endpoints"][0]["addresses"] == ["192.0.2.11"], tmp_path)
            patch = (
                '[{"op": "add", "path": "/spec/listeners/-", "value": {"name": "m", "port": 81, "protocol": "HTTP"}}]'
            )
            kubectl("patch", "gateway", "a", "--type=json", "-p", patch)
            until(lambda: 81 in listening("a"), tmp_path)
            assert listening("a")[80] == at["a"]
            until(lambda: code(listening("a")[81], "any.org", "/a") == "503", tmp_path)
            assert code(at["a"], "any.org", "/a") == "503"
            kubectl("delete", "gateway", "b")
            until(lambda: "b-own" not in kubectl("get", "services", "-o", "name"), tmp_path)
            until(lambda: code(at["b"], "any.org", "/b") == "000", tmp_path)
            kubectl("patch", "gateway", "a", "--type=merge", "-p", '{"spec": {"gatewayClassName": "others"}}')
            until(lambda: "a-own" not in kubectl("get", "services", "-o", "name"), tmp_path)
