"""The surroundings of a tried Pod: a network, answering Pods, objects, the kubelet's mounts."""

import contextlib
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from scripts.images.podspec import ACCOUNT

Object = dict[str, Any]

NODE: Final = "node-0"
ADDRESS: Final = "192.0.2.10"
VIP: Final = "10.96.0.80"
HOST: Final = "web.example.com"
SERVER: Final = ("127.0.0.1", 6443)
FIRST, SECOND = "10.244.0.1", "10.244.0.2"
GATEWAY_PORT: Final = 8000
_PORT: Final = 8080
FIELDS: Final = {
    "spec.nodeName": NODE,
    "status.podIP": ADDRESS,
    "metadata.labels['topology.kubernetes.io/zone']": "",
}
"""Values of a Pod's field references."""
ENVIRON: Final = {"KUBERNETES_SERVICE_HOST": SERVER[0], "KUBERNETES_SERVICE_PORT": str(SERVER[1])}
_NODES = f"""
link set lo up
link add node type veth peer name wire
link set node up
address add {ADDRESS}/24 dev node
route add default dev node
"""
_PODS = f"""
link set lo up
link set wire up
address add {FIRST}/32 dev wire
address add {SECOND}/32 dev wire
route add default dev wire
"""


def make_network() -> None:
    """Give this network namespace an address and a default route."""
    subprocess.run(["ip", "-batch", "-"], input=_NODES, text=True, check=True)
    # A new namespace copies the machine's value, and the Pod must show that it sets it.
    for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
        Path("/proc/sys/net", name).write_text("0\n")


def mount_bpffs() -> None:
    """Give this mount namespace a bpffs of its own, as systemd mounts one on a node."""
    subprocess.run(["mount", "-t", "bpf", "bpffs", "/sys/fs/bpf"], check=True)


def show_one_cgroup_tree() -> None:
    """Hide all but one cgroup hierarchy in this mount namespace: crun refuses two versions."""
    path = "/sys/fs/cgroup"
    if (
        subprocess.run(["stat", "-fc", "%T", path], capture_output=True, text=True, check=True).stdout
        != "cgroup2fs\n"
    ):
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", path], check=True)


@contextlib.contextmanager
def web_servers(folder: Path) -> Iterator[None]:
    """Answer at both Pods' addresses with the address, in a network namespace behind `wire`."""
    with contextlib.ExitStack() as stack:
        first = _kept(stack, ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], subprocess.PIPE)
        if first.stdout is not None:
            first.stdout.readline()
        subprocess.run(["ip", "link", "set", "wire", "netns", str(first.pid)], check=True)
        within = ["nsenter", f"--net=/proc/{first.pid}/ns/net"]
        subprocess.run([*within, "ip", "-batch", "-"], input=_PODS, text=True, check=True)
        for address in (FIRST, SECOND):
            pages = folder / address
            pages.mkdir()
            (pages / "index.html").write_text(address)
            command = [sys.executable, "-m", "http.server", "--bind", address, "--directory", str(pages), str(_PORT)]
            _kept(stack, [*within, *command])
        yield


def _kept(
    stack: contextlib.ExitStack, command: list[str], output: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    process = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=output))
    stack.callback(process.kill)
    return process


def objects() -> list[Object]:
    """Build a Service with a fixed VIP, one without, an Ingress, and a Gateway with an HTTPRoute."""
    metadata = {"name": "web", "namespace": "default"}
    ports = [{"name": "http", "port": 80, "targetPort": _PORT}]
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    rule = {"host": HOST, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": VIP, "ports": ports}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "pods", "namespace": "default"},
            "spec": {"clusterIP": "None", "ports": ports},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": metadata,
            "spec": {"ingressClassName": "vipwire", "rules": [rule]},
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": metadata,
            "spec": {
                "gatewayClassName": "vipwire",
                "listeners": [{"name": "http", "port": GATEWAY_PORT, "protocol": "HTTP"}],
            },
        },
        {
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": metadata,
            "spec": {"parentRefs": [{"name": "web"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]},
        },
    ]


def slices_of(address: str) -> list[Object]:
    return [
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": f"{name}-1", "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": _PORT, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        }
        for name in ("web", "pods")
    ]


def apply(kubeconfig: Path, *applied: Object) -> None:
    text = yaml.safe_dump_all(applied)
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "apply", "--filename=-"]
    subprocess.run(command, input=text, text=True, check=True, stdout=subprocess.DEVNULL)


def ready(kubeconfig: Path) -> bool:
    command = ["kubectl", f"--kubeconfig={kubeconfig}", "get", "--raw=/readyz"]
    return kubeconfig.exists() and not subprocess.run(command, capture_output=True, check=False).returncode


def fill_volumes(folder: Path, pod: Object, mode: str, cluster: Path, user: str) -> None:
    """Write the kubelet's mounts: the service account with the credentials of `user`, each volume by its name."""
    with (cluster / "tokens.csv").open(newline="") as file:
        token = next(row[0] for row in csv.reader(file) if row[1] == user)
    authority = (cluster / "pki/ca.crt").read_text()
    _as_kubelet(folder / "account", {"token": token, "ca.crt": authority})
    for volume in pod.get("volumes", ()):
        if "configMap" in volume:
            _as_kubelet(folder / volume["name"], _kubeadm(mode))
        elif "emptyDir" in volume:
            (folder / volume["name"]).mkdir()
            (folder / volume["name"]).chmod(0o777)
        elif volume["hostPath"].get("type") == "FileOrCreate":
            Path(volume["hostPath"]["path"]).touch()


def _as_kubelet(folder: Path, files: dict[str, str]) -> None:
    """Write files as a kubelet does: links to a folder that one rename replaces."""
    (folder / "..2026_01_01").mkdir(parents=True)
    (folder / "..data").symlink_to("..2026_01_01")
    for name, text in files.items():
        (folder / "..data" / name).write_text(text)
        (folder / name).symlink_to(f"..data/{name}")


def _kubeadm(mode: str) -> dict[str, str]:
    """Return the two files of kubeadm's ConfigMap."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clusterCIDR": "10.244.0.0/16",
        "clientConnection": {"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
        # The table's size is the machine's, and this is a new network namespace.
        "conntrack": {"maxPerCore": 0},
    }
    cluster = {"server": "https://{}:{}".format(*SERVER), "certificate-authority": f"{ACCOUNT}/ca.crt"}
    access = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default", "cluster": cluster}],
        "contexts": [{"name": "default", "context": {"cluster": "default", "user": "default"}}],
        "current-context": "default",
        "users": [{"name": "default", "user": {"tokenFile": f"{ACCOUNT}/token"}}],
    }
    return {"config.conf": yaml.safe_dump(config), "kubeconfig.conf": json.dumps(access)}
