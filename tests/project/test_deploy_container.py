"""The Pod's container as the overlays have it: its rights, mounts, a read-only root and /proc/sys; and traffic.

What is missing of a container runtime here: seccomp, SELinux and AppArmor, and the image.
"""

import asyncio
from pathlib import Path

import pytest
import yaml
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.daemon import Daemon, Record, echo, prepare, reached, service_of, slice_for, stage
from tests.project.deployed import Object, containers, pod_of, recorded

pytestmark = pytest.mark.kernel
VIP = "10.96.0.1"
_ENTER = """
mount --make-rprivate /
mkdir -p /run/vipwire && mount -t tmpfs host /run/vipwire  # the node's, which the Pod mounts
mkdir -p /run/host && mount -t tmpfs settings /run/host && mkdir -p /run/host/proc/sys/net
for path in / /tmp /run; do mountpoint -q $path && mount -o remount,bind,ro $path; done
mount --bind /proc/sys/net /run/host/proc/sys/net
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
exec "$@"
"""


def within(container: Object, before: str = "") -> tuple[str, ...]:
    """Make a command that runs another as a container runtime would: privileged, or with capabilities."""
    context = container["securityContext"]
    if context.get("privileged"):
        return ()
    # A machine that does not have a right itself cannot give it.
    added = [f"+{name.lower()}" for name in context["capabilities"]["add"] if name != "SYS_RESOURCE"]
    rights = ("setpriv", f"--bounding-set={','.join(['-all', *added])}", "--inh-caps=-all", "--no-new-privs")
    return ("unshare", "--mount", "sh", "-ec", _ENTER.replace("exec", f"{before}exec"), "enter", *rights)


def configured(folder: Path, server: str, mode: str) -> Path:
    """Write kubeadm's two files."""
    cluster = {"name": "default", "cluster": {"server": server}}
    context = {"name": "default", "context": {"cluster": "default", "user": "default"}}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
    kubeconfig |= {"users": [{"name": "default", "user": {}}], "current-context": "default"}
    (folder / "kubeconfig.conf").write_text(yaml.safe_dump(kubeconfig))
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "clientConnection": {"kubeconfig": str(folder / "kubeconfig.conf")},
        # The size of the table is the machine's: it cannot be set from a network namespace of one's own.
        "conntrack": {"maxPerCore": 0},
    }
    (folder / "config.conf").write_text(yaml.safe_dump(config))
    return folder / "config.conf"


def flags(container: Object, config: Path) -> list[str]:
    text = (each.replace("/var/lib/kube-proxy/config.conf", str(config)) for each in container["args"])
    return [each.replace("$(NODE_NAME)", "node-0") for each in text]


@pytest.mark.parametrize("mode", ["nftables", "iptables"])
def test_the_container_of_an_overlay_sets_what_the_node_needs_and_serves_a_vip(mode: str, tmp_path: Path) -> None:
    (proxy,) = containers(pod_of(recorded(mode)))
    records = served(proxy, mode, tmp_path)
    assert [
        each for each in records if each["msg"] == "kernel setting changed" and each["name"] == "net.ipv4.ip_forward"
    ]
    assert {each["what"] for each in records if each["msg"] == "cannot set"} <= {"oom_score_adj -999"}


def test_without_the_nodes_settings_the_proxy_says_what_it_cannot_set_and_serves(tmp_path: Path) -> None:
    (proxy,) = containers(pod_of(recorded("nftables")))
    records = served(proxy, "nftables", tmp_path, "umount /run/host/proc/sys/net\n")
    (record,) = (each for each in records if each["msg"] == "cannot set" and each["what"] == "net.ipv4.ip_forward")
    assert "Read-only file system" in record["reason"]
    assert "/run/host/proc/sys/net" in record["remedy"]


def served(proxy: Object, mode: str, folder: Path, before: str = "") -> list[Record]:
    """Run the container until a client reaches a VIP and it has ended; return its log."""
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", VIP))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))

    async def story() -> list[Record]:
        async with server, echo():
            config = configured(folder, server.url, mode)
            async with Daemon(*flags(proxy, config), within=within(proxy, before)) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
                assert await reached(VIP) == "10.244.0.1"
                assert await daemon.terminate() == 0
            return daemon.records

    with stage():
        return asyncio.run(story())
