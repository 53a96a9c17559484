"""The Pod's containers as the overlays have them: their rights, a read-only root, a read-only /proc/sys; and traffic.

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
for path in / /tmp /run; do mountpoint -q $path && mount -o remount,bind,ro $path; done
mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys
exec "$@"
"""


def within(container: Object) -> tuple[str, ...]:
    """Make a command that runs another as a container runtime would: privileged, or with capabilities."""
    context = container["securityContext"]
    if context.get("privileged"):
        return ()
    # A machine that does not have a right itself cannot give it.
    added = [f"+{name.lower()}" for name in context["capabilities"]["add"] if name != "SYS_RESOURCE"]
    rights = ("setpriv", f"--bounding-set={','.join(['-all', *added])}", "--inh-caps=-all", "--no-new-privs")
    return ("unshare", "--mount", "sh", "-ec", _ENTER, "enter", *rights)


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
def test_the_containers_of_an_overlay_serve_a_vip(mode: str, tmp_path: Path) -> None:
    first, proxy = (each for each in containers(pod_of(recorded(mode))) if each["command"] == ["vipwire", "proxy"])
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", VIP))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))

    async def story() -> list[Record]:
        async with server, echo():
            config = configured(tmp_path, server.url, mode)
            async with Daemon(*flags(first, config), within=within(first)) as prepared:
                assert await prepared.ended() == 0
            assert prepared.said("kernel setting changed", name="net.ipv4.ip_forward")
            async with Daemon(*flags(proxy, config), within=within(proxy)) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
                assert await reached(VIP) == "10.244.0.1"
                assert await daemon.terminate() == 0
            return daemon.records

    with stage():
        records = asyncio.run(story())
    assert not [each for each in records if each["msg"] == "kernel setting changed"], "/proc/sys is read-only"
    assert {each["what"] for each in records if each["msg"] == "cannot set"} <= {"oom_score_adj -999"}


def test_without_the_first_container_the_proxy_says_what_it_cannot_set_and_serves(tmp_path: Path) -> None:
    (proxy,) = pod_of(recorded("nftables"))["containers"]
    server = FakeApiServer()
    prepare(server)
    server.store.put("services", service_of("web", VIP))
    server.store.put("endpointslices", slice_for("web", "10.244.0.1"))

    async def story() -> Record:
        async with server, echo():
            config = configured(tmp_path, server.url, "nftables")
            async with Daemon(*flags(proxy, config), within=within(proxy)) as daemon:
                await daemon.heard("synced", ip_family="IPv4")
                assert await reached(VIP) == "10.244.0.1"
                return await daemon.heard("cannot set", what="net.ipv4.ip_forward")

    with stage():
        record = asyncio.run(story())
    assert "Read-only file system" in record["reason"]
    assert "run the container privileged" in record["remedy"]
