"""What scripts/images makes of the Pods in deploy/: nothing of them is left out in silence."""

from pathlib import Path

import pytest
import yaml
from scripts.images.podspec import PodHost, Probe, UnknownFieldError, containers, probe, run_arguments
from scripts.images.world import ENVIRON, FIELDS
from tests.project.deployed import DEPLOY, OVERLAYS, Object, pod_of, recorded

PLACE = PodHost(Path("/volumes"), FIELDS, ENVIRON)
ORPHANS = {"userspace", "ingress", "gateway"}
"""Pods with processes whose parents may go before them: somebody else has to collect them."""


def pod_named(name: str) -> Object:
    if name in OVERLAYS:
        return pod_of(recorded(name))
    file = DEPLOY / name / ("deployment.yaml" if name == "dns" else "daemonset.yaml")
    spec: Object = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    return spec


def test_the_proxys_container_as_podman_is_to_run_it() -> None:
    pod = pod_named("iptables")
    _, (container,) = containers(pod)
    assert run_arguments(pod, container, PLACE) == [
        "--network=host",
        "--volume=/volumes/account:/var/run/secrets/kubernetes.io/serviceaccount:ro",
        "--read-only",
        "--read-only-tmpfs=false",
        "--user=0",
        "--security-opt=no-new-privileges",
        "--cap-drop=ALL",
        "--cap-add=NET_ADMIN",
        "--cap-add=SYS_RESOURCE",
        "--cap-add=NET_RAW",
        "--volume=/volumes/kube-proxy:/var/lib/kube-proxy:ro",
        "--volume=/run/vipwire:/run/vipwire",
        "--volume=/proc/sys/net:/run/host/proc/sys/net",
        "--volume=/run/xtables.lock:/run/xtables.lock",
        "--env=KUBERNETES_SERVICE_HOST=127.0.0.1",
        "--env=KUBERNETES_SERVICE_PORT=6443",
        "--env=NODE_NAME=node-0",
        "--env=VIPWIRE_FLAGS=--config=/var/lib/kube-proxy/config.conf --hostname-override=node-0",
        '--entrypoint=["vipwire", "proxy"]',
        "registry.example/vipwire:0.2.0",
        "--config=/var/lib/kube-proxy/config.conf",
        "--hostname-override=node-0",
    ]


@pytest.mark.parametrize("name", [*OVERLAYS, "ingress", "gateway", "dns"])
def test_every_container_is_understood(name: str, tmp_path: Path) -> None:
    pod = pod_named(name)
    first, others = containers(pod)
    for container in (*first, *others):
        arguments = run_arguments(pod, container, PodHost(tmp_path, FIELDS, ENVIRON))
        assert container["image"] in arguments
        added = container["securityContext"].get("capabilities", {}).get("add", [])
        assert [each for each in arguments if "cap-add" in each] == [f"--cap-add={right}" for right in added]
        assert "--read-only" in arguments
        assert "$(" not in " ".join(arguments)
        assert "--privileged" not in arguments
        assert ("--init" in arguments) == (name in ORPHANS)


def test_keys_of_certificates_are_kept_in_memory() -> None:
    pod = pod_named("ingress")
    _, (container,) = containers(pod)
    assert "--tmpfs=/run/vipwire-ingress:rw,mode=0777" in run_arguments(pod, container, PLACE)
    assert probe(container, "readinessProbe") == Probe(10254, "/readyz", "127.0.0.1")


def test_a_right_that_cannot_be_given_is_left_out() -> None:
    pod = pod_named("nftables")
    _, (container,) = containers(pod)
    without = run_arguments(pod, container, PodHost(Path("/volumes"), FIELDS, ENVIRON, frozenset({"SYS_RESOURCE"})))
    assert [each for each in without if each.startswith("--cap-add")] == ["--cap-add=NET_ADMIN"]


def test_what_is_not_known_is_refused() -> None:
    pod = pod_named("nftables")
    _, (container,) = containers(pod)
    with pytest.raises(UnknownFieldError, match="hostPID"):
        containers(pod | {"hostPID": True})
    with pytest.raises(UnknownFieldError, match="lifecycle"):
        run_arguments(pod, container | {"lifecycle": {}}, PLACE)
    with pytest.raises(UnknownFieldError, match="procMount"):
        run_arguments(pod, container | {"securityContext": {"procMount": "Unmasked"}}, PLACE)
    with pytest.raises(UnknownFieldError, match="Unconfined"):
        run_arguments(pod, container | {"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, PLACE)
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "secret", "key": "key"}}}
    with pytest.raises(UnknownFieldError, match="KEY"):
        run_arguments(pod, container | {"env": [secret]}, PLACE)
