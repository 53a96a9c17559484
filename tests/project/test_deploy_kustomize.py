"""The kustomization renders to what the API server takes, the kubelet runs and vipwire understands."""

import os
from pathlib import Path

import pytest
import yaml
from tests.project.deployed import DEPLOY, KUBECTL, OVERLAYS, Object, containers, pod_of, recorded, rendered

from vipwire import __version__
from vipwire.config.flags import FLAGS, build_config, parse_flags
from vipwire.config.modes import list_mode_names

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="renders with kubectl, which is not installed")
# As kubeadm writes it, with a mode put in.
KUBEADM = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
healthzBindAddress: ""
metricsBindAddress: ""
hostnameOverride: ""
mode: "{mode}"
oomScoreAdj: null
"""

RIGHTS = {
    "nftables": {"NET_ADMIN", "SYS_RESOURCE"},
    "iptables": {"NET_ADMIN", "SYS_RESOURCE", "NET_RAW"},
    "ipvs": {"NET_ADMIN", "SYS_RESOURCE", "NET_RAW"},
    "userspace": {"NET_ADMIN", "SYS_RESOURCE", "NET_BIND_SERVICE"},
    "ebpf": {"NET_ADMIN", "SYS_RESOURCE", "BPF"},
}


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_is_recorded_is_what_kubectl_renders(overlay: str) -> None:
    assert rendered(DEPLOY / "overlays" / overlay) == recorded(overlay), "UPDATE_GOLDEN=1 records it anew"


def test_there_is_an_overlay_for_every_mode() -> None:
    assert {path.name for path in (DEPLOY / "overlays").iterdir()} == set(OVERLAYS)
    assert set(OVERLAYS) == set(list_mode_names())


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_proxy_has_the_rights_that_its_mode_needs_and_no_others(overlay: str) -> None:
    pod = pod_of(recorded(overlay))
    (proxy,) = pod["containers"]
    context = proxy["securityContext"]
    assert context["capabilities"]["drop"] == ["ALL"]
    assert set(context["capabilities"]["add"]) == RIGHTS[overlay]
    assert not context.get("privileged", False)
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert [each["name"] for each in containers(pod)] == [*["modules"] * (overlay == "ipvs"), "vipwire"]
    assert not any(each["securityContext"].get("privileged") for each in containers(pod))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_vipwire_takes_the_arguments_and_kubeadms_file(overlay: str, tmp_path: Path) -> None:
    file = tmp_path / "config.conf"
    file.write_text(KUBEADM.format(mode=overlay))
    for container in containers(pod_of(recorded(overlay))):
        if container["command"] != ["vipwire", "proxy"]:
            continue
        arguments = [_expanded(text, container, file) for text in container["args"]]
        given = parse_flags(arguments)
        assert all(FLAGS[name].with_config for name in given), "counts beside --config"
        config, warnings = build_config(given)
        assert config.proxy_mode == overlay
        assert config.hostname_override == "worker-1"
        assert not [warning for warning in warnings if "ignored" in warning]


def _expanded(text: str, container: Object, file: Path) -> str:
    assert "$(NODE_NAME)" not in text or "NODE_NAME" in {each["name"] for each in container["env"]}
    return text.replace("$(NODE_NAME)", "worker-1").replace("/var/lib/kube-proxy/config.conf", str(file))


@pytest.mark.slow
@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_components_and_another_registry_go_with_every_overlay(overlay: str, tmp_path: Path) -> None:
    def relative(*parts: str) -> str:
        return os.path.relpath(DEPLOY.joinpath(*parts), tmp_path.resolve())

    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [relative("overlays", overlay)],
        "components": [relative("components", name) for name in ("privileged", "by-node-label", "own-configmap")],
        "images": [{"name": "registry.example/vipwire", "newName": "harbor.test/net/vipwire"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    pod = pod_of(rendered(tmp_path))
    (proxy,) = pod["containers"]
    assert proxy["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert proxy["image"].startswith(f"harbor.test/net/vipwire:{__version__}")
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "vipwire.io/service-proxy": "vipwire"}
    assert {"name": "kube-proxy", "configMap": {"name": "vipwire"}} in pod["volumes"]


@pytest.mark.slow
@needs_kubectl
def test_kube_proxys_own_cleanup_can_run_before_the_proxy(tmp_path: Path) -> None:
    document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [os.path.relpath(DEPLOY / "overlays/nftables", tmp_path.resolve())],
        "components": [os.path.relpath(DEPLOY / "components/remove-kube-proxy-rules", tmp_path.resolve())],
        "images": [{"name": "registry.k8s.io/kube-proxy", "newTag": "v1.33.1"}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(document))
    cleanup = pod_of(rendered(tmp_path))["initContainers"][-1]
    assert cleanup["command"] == ["/usr/local/bin/kube-proxy", "--cleanup"]
    assert cleanup["image"] == "registry.k8s.io/kube-proxy:v1.33.1"


def test_kube_proxy_and_vipwire_part_the_nodes_by_one_label() -> None:
    patch = yaml.safe_load((DEPLOY / "migration/kube-proxy-by-node-label.yaml").read_text())
    affinity = patch["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (alternative,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (term,) = alternative["matchExpressions"]
    component = (DEPLOY / "components/by-node-label/kustomization.yaml").read_text()
    assert term == {"key": "vipwire.io/service-proxy", "operator": "NotIn", "values": ["vipwire"]}
    assert "/nodeSelector/vipwire.io~1service-proxy\n      value: vipwire" in component
