"""The stages of the examples: pages, machine, and the reader's preparations in between."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.examples.blocks import Example
from tests.examples.setups import (
    ADMIN_OF_A_CLUSTER,
    AS_ROOT,
    ETCD,
    ETCD_FLAGS,
    FILES_OF_THE_GATEWAY,
    IN_A_FILE,
    NETWORK,
    NODE_IN_IPVS_MODE,
    NODE_WITHOUT_PROXY,
    PODS_ANSWER,
    READY,
    STOPPED,
    SYNCED,
    WITH_MANIFEST,
    WITH_SERVERS,
    ended,
    stopped,
)

NOT_RUN: Final[Mapping[str, tuple[str, ...]]] = {
    "README.md": (
        "make demo",
        "make test",
        "python3 -m venv",
        "/opt/vipwire/bin/",
        ".venv/bin/vipwire lab",
        "vipwire proxy --config",
    ),
    "docs/deploy.md": (
        "podman ",
        "ctr ",
        "skopeo ",
        "kubectl delete -k",
        "make image",
        "helm install",
        "helm upgrade",
        "kubectl apply -k",
        "kubectl --namespace=kube-system",
        "apt-get install",
        "vi ",
        "systemctl ",
        "python3 -m venv",
        "install -D",
        "mkdir ",
    ),
    "docs/gateway.md": ("vipwire ingress convert", "kubectl get service"),
    "docs/lab.md": ("vipwire lab compare", "vipwire lab tour"),
    "docs/migrate-from-kube-proxy.md": (
        *(f"kubectl --namespace=kube-system {verb}" for verb in ("patch", "get pods", "logs", "exec")),
        "pod=$(kubectl",
        "kubectl apply -k",
        "kubectl delete -k",
    ),
    "docs/modes/iptables.md": ("modprobe",),
    "docs/modes/nftables.md": ("nft list set ip vipwire connections", "vipwire proxy --offload"),
    "docs/stores.md": ("pip install",),
}
"""Beginnings of a page's commands that need more than any stage has, such as a container engine or Pods."""


@dataclass(frozen=True)
class Stage:
    """A shell on its own machine that runs the examples of pages, in order.

    `before`: preparations for the command that begins so, as the text says. `serving`: background commands.
    `numbers_vary`: commands with varying numbers. `waited_for`: commands that look at a state which changes in a
    moment. `fails`: commands with exit status not 0 because they found something. `stands_for`: a document's
    placeholder for a varying value, and the command that prints it here. `inside`: the network namespace of the
    shell. `guest`: needs IPVS, which the guest's kernel has.
    """

    name: str
    pages: tuple[str, ...]
    setup: str
    before: Mapping[str, str] = field(default_factory=dict)
    serving: tuple[str, ...] = ()
    numbers_vary: tuple[str, ...] = ()
    waited_for: tuple[str, ...] = ()
    fails: tuple[str, ...] = ()
    stands_for: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""
    guest: bool = False

    def runs(self, example: Example) -> bool:
        page = example.where.partition(":")[0]
        return page in self.pages and not example.command.startswith(NOT_RUN.get(page, ()))


_ALLOCATED: Final = {"10.96.203.129": "kubectl get service web -o jsonpath={.spec.clusterIP}"}
_LOOKS: Final = (
    "kubectl get",
    "curl",
    "for n in",
    "dig",
    "vipwire status",
    "vipwire explain",
    "vipwire lab exec node-1 -- vipwire",
)

STAGES: Final = (
    Stage(
        "see a packet",
        ("docs/tutorials/see-a-packet.md",),
        "true",
        serving=("vipwire lab view",),
        numbers_vary=("vipwire lab probe",),
        fails=("vipwire lab exec node-1 -- vipwire explain",),
        waited_for=_LOOKS,
    ),
    Stage(
        "two web servers",
        ("docs/tutorials/two-web-servers.md",),
        NETWORK,
        before={"vipwire cleanup": ended("vipwire up")},
        serving=("vipwire up", "vipwire view"),
        waited_for=_LOOKS,
        numbers_vary=("for n in", "vipwire status"),
        stands_for=_ALLOCATED,
    ),
    Stage(
        "from kube-proxy",
        ("docs/tutorials/from-kube-proxy.md", "docs/migrate-from-kube-proxy.md"),
        NETWORK,
        before={
            "sed -i": ended("vipwire proxy"),
            "vipwire cleanup": ended("vipwire proxy"),
            "kubectl --namespace=kube-system get configmap": ADMIN_OF_A_CLUSTER,
            "nft delete table": "nft add table ip vipwire; nft add table ip6 vipwire",
        },
        serving=("vipwire up", "vipwire proxy"),
        waited_for=_LOOKS,
        numbers_vary=("vipwire status",),
        fails=("iptables-save -t nat | grep -c", "vipwire check"),
        stands_for={"worker-1": "printf %s $HOSTNAME"},
    ),
    Stage(
        "standalone",
        ("docs/standalone.md",),
        WITH_SERVERS,
        before={
            "vipwire up --bind-address": f"{STOPPED} && ip address add 10.0.0.1/24 dev eth0",
            "vipwire token create": READY,
            "vipwire store backup": "mkdir backup",
            "vipwire store restore": STOPPED,
        },
        serving=("vipwire up",),
        waited_for=_LOOKS,
        stands_for={**_ALLOCATED, "/backup": 'printf %s "$STAGE/backup"'},
    ),
    Stage(
        "a gateway",
        ("docs/gateway.md",),
        f"{NETWORK}{AS_ROOT}{FILES_OF_THE_GATEWAY}",
        serving=("mkdir old new",),
        waited_for=_LOOKS,
    ),
    Stage(
        "the lab",
        ("docs/lab.md",),
        "true",
        numbers_vary=("vipwire lab probe", "vipwire lab exec node-1 -- vipwire status"),
        waited_for=_LOOKS,
    ),
    Stage(
        "troubleshooting",
        ("docs/troubleshooting.md",),
        "true",
        serving=("vipwire ingress",),
        numbers_vary=("vipwire lab probe",),
        fails=(
            "vipwire lab probe",
            "vipwire lab exec node-1 -- vipwire explain",
            "vipwire lab exec node-1 -- vipwire check",
        ),
        waited_for=(*_LOOKS, "vipwire lab probe", "vipwire lab exec node-2 -- vipwire", "grep"),
    ),
    Stage(
        "on a node",
        ("docs/deploy.md", "docs/commands.md", "docs/packet-path.md", "docs/modes/nftables.md"),
        "vipwire lab up --proxy-mode nftables && cp -r /run/vipwire-lab/demo/services /etc/vipwire/\n"
        "export VIPWIRE_FLAGS=--state-dir=/run/vipwire-lab/demo/state",
        serving=("vipwire view", "nft 'add table ip trace"),
        inside="vipwire-demo-node-1",
        fails=("vipwire drain 10.244.2.12", "vipwire proxy --proxy-mode=iptables"),
        waited_for=_LOOKS,
    ),
    Stage(
        "a node's own proxy",
        ("docs/modes/ebpf.md", "docs/modes/changing.md", "docs/modes/iptables.md", "docs/modes/userspace.md"),
        NODE_WITHOUT_PROXY,
        before={
            "vipwire proxy --proxy-mode=iptables": f"{SYNCED}; {stopped('vipwire proxy')}",
            "vipwire proxy --proxy-mode=userspace": f"{SYNCED}; {stopped('vipwire proxy')}",
        },
        serving=("vipwire proxy",),
        inside="vipwire-demo-node-1",
        waited_for=(*_LOOKS, "iptables-save"),
        stands_for={" …": "true"},
    ),
    Stage(
        "servers by names",
        ("docs/dns.md", "docs/ingress.md", "README.md"),
        WITH_MANIFEST,
        before={"for n in 1 2 3 4": PODS_ANSWER},
        serving=("vipwire proxy",),
        waited_for=_LOOKS,
        stands_for={"/etc/vipwire/services": 'printf %s "$STAGE/services"'},
    ),
    Stage(
        "objects in etcd",
        ("docs/stores.md",),
        ETCD,
        before={"vipwire store migrate --to etcd": IN_A_FILE},
        serving=("vipwire up",),
        numbers_vary=("vipwire store",),
        stands_for={"https://10.0.0.1:2379,…": f"printf %s '{ETCD_FLAGS}'"},
    ),
    Stage(
        "ipvs mode",
        ("docs/leave-ipvs.md", "docs/modes/ipvs.md"),
        NODE_IN_IPVS_MODE,
        inside="vipwire-demo-node-1",
        waited_for=("ipvsadm",),
        fails=("vipwire check",),
        guest=True,
    ),
)


def is_run(example: Example) -> bool:
    return any(stage.runs(example) for stage in STAGES)
