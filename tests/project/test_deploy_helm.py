"""The Helm chart, rendered by a real helm: the objects of the kustomizations, and nothing that values do not say."""

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.project.deployed import DEPLOY, OVERLAYS, ROOT, Object, one, pod_of, recorded

from vipwire import __version__
from vipwire.config.file import read_config

HELM = ROOT / ".venv/tools/helm"
CHART = DEPLOY / "helm/vipwire"
HELMS_LABELS = {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "GatewayClass", "IngressClass"}
OURS = {"app.kubernetes.io/name", "app.kubernetes.io/component"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the helm that is there is for amd64"),
]


def helm(*arguments: str | Path) -> str:
    done = subprocess.run([str(HELM), *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr + done.stdout)
    return done.stdout


def rendered(**values: Any) -> list[Object]:
    """Render the chart as a release `vipwire` in kube-system, with these values: a__b means a.b."""
    said = [f"--set-json={name.replace('__', '.')}={json.dumps(value)}" for name, value in values.items()]
    text = helm("template", "vipwire", CHART, "--namespace=kube-system", *said)
    return [each for each in yaml.safe_load_all(text) if each]


def bare(found: Object) -> Object:
    """Leave out what is the packager's: labels of Helm's, and those that name the product and the part."""
    found = json.loads(json.dumps(found))
    for metadata in (found["metadata"], found.get("spec", {}).get("template", {}).get("metadata", {})):
        kept = {name: value for name, value in metadata.get("labels", {}).items() if name not in HELMS_LABELS | OURS}
        metadata["labels"] = kept
        metadata.get("annotations", {}).pop("helm.sh/resource-policy", None)
        if not metadata.get("annotations", True):
            del metadata["annotations"]
        if found["kind"] in CLUSTER_WIDE:
            metadata.pop("namespace", None)
    return found


def by_name(objects: list[Object]) -> dict[tuple[str, str], Object]:
    return {(each["kind"], each["metadata"]["name"]): bare(each) for each in objects}


def files(folder: str) -> list[Object]:
    """Read a folder's objects as they are, with the image that its kustomization puts in."""
    kustomization = yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text(encoding="utf-8"))
    (image,) = kustomization["images"]
    found: list[Object] = []
    for name in kustomization["resources"]:
        found += filter(None, yaml.safe_load_all((DEPLOY / folder / name).read_text(encoding="utf-8")))
    for each in found:
        if each["kind"] in ("Deployment", "DaemonSet"):
            (container,) = each["spec"]["template"]["spec"]["containers"]
            container["image"] = f"{image['newName']}:{image['newTag']}"
        if each["kind"] not in CLUSTER_WIDE:
            each["metadata"].setdefault("namespace", kustomization.get("namespace"))
    return found


@pytest.mark.parametrize("mode", OVERLAYS)
def test_a_modes_objects_are_those_of_its_overlay(mode: str) -> None:
    assert by_name(rendered(mode=mode)) == by_name(recorded(mode))


@pytest.mark.parametrize("part", ["dns", "ingress", "gateway"])
def test_a_parts_objects_are_those_of_its_folder(part: str) -> None:
    added = by_name(rendered(**{f"{part}__enabled": True}))
    for name in by_name(rendered()):
        del added[name]
    assert added == by_name(files(part))


@pytest.mark.parametrize("mode", OVERLAYS)
def test_the_chart_is_sound(mode: str) -> None:
    on = [
        "dns.enabled",
        "ingress.enabled",
        "gateway.enabled",
        "monitoring.alerts",
        "monitoring.podMonitor",
        "privileged",
    ]
    said = helm("lint", "--strict", CHART, f"--set=mode={mode}", *(f"--set={name}=true" for name in on))
    assert "0 chart(s) failed" in said


def test_the_charts_version_is_vipwires() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_an_own_configuration_is_one_that_vipwire_reads() -> None:
    objects = rendered(
        mode="ipvs",
        config__create=True,
        config__apiServer="https://10.0.0.1:6443",
        config__fields={"clusterCIDR": "10.244.0.0/16", "ipvs": {"scheduler": "lc"}, "mode": "iptables"},
    )
    written = one(objects, "ConfigMap")
    (volume,) = (each for each in pod_of(objects)["volumes"] if each["name"] == "kube-proxy")
    assert volume["configMap"]["name"] == written["metadata"]["name"]
    config = read_config(written["data"]["config.conf"]).config
    assert (config.mode, config.ipvs.scheduler) == ("ipvs", "lc")
    cluster = yaml.safe_load(written["data"]["kubeconfig.conf"])["clusters"][0]["cluster"]
    assert cluster["server"] == "https://10.0.0.1:6443"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "ebfp"}, "mode"),
        ({"config__create": True}, "config.create needs config.apiServer"),
        ({"config__apiServer": "10.0.0.1"}, "apiServer"),
        ({"extraArgs": ["v=4"]}, "extraArgs"),
        ({"recources": {}}, "recources"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rendered(**values)


def test_values_end_up_where_they_belong() -> None:
    objects = rendered(
        image={"repository": "example.org/vipwire", "tag": "7", "pullPolicy": "Always"},
        imagePullSecrets=[{"name": "pull"}],
        extraArgs=["--counters=endpoints"],
        nodeSelector={"kind": "edge"},
        podAnnotations={"note": "yes"},
        resources={"requests": {"cpu": "1"}},
        maxUnavailable=3,
    )
    pod = pod_of(objects)
    container = pod["containers"][0]
    assert (container["image"], container["imagePullPolicy"]) == ("example.org/vipwire:7", "Always")
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert container["args"][-1] == "--counters=endpoints"
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "kind": "edge"}
    assert container["resources"] == {"requests": {"cpu": "1"}}
    daemonset = one(objects, "DaemonSet")["spec"]
    assert daemonset["template"]["metadata"]["annotations"] == {"note": "yes"}
    assert daemonset["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 3


def test_a_privileged_pod_has_one_privileged_container() -> None:
    pod = pod_of(rendered(privileged=True))
    assert "initContainers" not in pod
    assert pod["containers"][0]["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}


def test_alerts_are_those_of_deploy_monitoring() -> None:
    alerts = yaml.safe_load((DEPLOY / "monitoring/alerts.yaml").read_text(encoding="utf-8"))
    assert one(rendered(monitoring__alerts=True), "PrometheusRule") == alerts
