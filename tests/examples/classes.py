"""Says of each command in the documents that no stage runs why nobody does. One that is nowhere here fails the suite.

What is not run is still asked of its program's own parser where there is one (`tests.examples.accepted`).
"""

from collections.abc import Mapping
from typing import Final

from tests.examples.blocks import Example

_BENCH: Final = "measures for minutes; tests/project/test_bench_*.py hold what it is made of"
_IMAGES: Final = "needs a container engine; `python -m scripts.images` builds and runs the images with podman"
_CHART: Final = "needs a cluster; tests/project/test_deploy_helm.py renders the chart with helm"
_SYSTEMD: Final = "a live systemd; `python -m scripts.three_servers` runs units there"
_WALK: Final = (
    "a live systemd on three machines: `python -m scripts.three_servers` takes its commands from the page and runs "
    "them there; tests/project/test_scripts_three_servers.py holds that it leaves none out"
)
_RENDERED: Final = "needs a cluster that runs Pods; tests/project/test_deploy_kustomize.py renders it with kubectl"
_NO_DAEMONSETS: Final = "needs a cluster that runs Pods: `vipwire up` has no DaemonSets"
_WHEEL: Final = "tests/project/test_deploy_package.py installs the wheel with pip, without an index"

EVERYWHERE: Final[Mapping[str, str]] = {
    "az ": "needs an account",
    "aws ": "needs an account",
    "helm install": _CHART,
    "make image": _IMAGES,
    "kind ": "needs a container engine and its images",
    "kubeadm ": "makes a cluster",
}
"""On any page that no stage runs: how a command begins, and why nobody runs it."""

NOT_RUN: Final[Mapping[str, Mapping[str, str]]] = {
    "CONTRIBUTING.md": {"": "runs these tests"},
    "README.md": {
        "make demo": "tests/lab/kernel/test_lab_demo.py runs the demo",
        "make test": "runs these tests",
        "python3 -m venv": _WHEEL,
        "/opt/vipwire/bin/": _WHEEL,
        ".venv/bin/vipwire lab up": "docs/tutorials/see-a-packet.md has the same, and is run",
        ".venv/bin/vipwire lab view": "docs/tutorials/see-a-packet.md has the same, and is run",
        ".venv/bin/vipwire lab down": "docs/tutorials/see-a-packet.md has the same, and is run",
        ".venv/bin/vipwire lab compare": "takes a minute; tests/lab/kernel/test_lab_compare.py runs it",
        ".venv/bin/vipwire lab tour": "waits for Enter; tests/lab/kernel/test_lab_compare.py runs it",
        "kubectl apply -k": _RENDERED,
        "vipwire proxy --config": "docs/tutorials/from-kube-proxy.md runs it with a file of its own",
    },
    "docs/deploy.md": {
        **dict.fromkeys(("podman ", "make image"), _IMAGES),
        **dict.fromkeys(("helm install", "helm upgrade"), _CHART),
        "kubectl apply -k": _RENDERED,
        "kubectl --namespace=kube-system": _NO_DAEMONSETS,
        "apt-get install": "tests/project/test_debian_package.py installs the package in an overlay",
        "vi ": "an editor",
        "systemctl ": _SYSTEMD,
        "python3 -m venv": _WHEEL,
        "install -D": "tests/project/test_deploy_systemd.py has systemd read what is installed",
        "mkdir ": "tests/project/test_deploy_systemd.py has systemd read what is installed",
        ".venv/bin/python -m scripts.images": "needs a container engine; takes minutes",
    },
    "docs/gateway.md": {
        "vipwire ingress convert": "asks the reader's cluster; tests/l7/gateway/test_gateway_convert.py runs it",
        "kubectl get service": "needs a cluster with Pods; tests/l7/kernel/test_gateway_services.py has one",
    },
    "docs/kernels.md": {"": "boots Debian's kernels in an emulator, for an hour; docs/kernels.md says what was seen"},
    "docs/lab.md": {
        "vipwire lab compare": "takes a minute; tests/lab/kernel/test_lab_compare.py runs it",
        "vipwire lab tour": "waits for Enter; tests/lab/kernel/test_lab_compare.py runs it",
    },
    "docs/migrate-from-kube-proxy.md": {
        "kubectl --namespace=kube-system patch": _NO_DAEMONSETS,
        "kubectl --namespace=kube-system get pods": _NO_DAEMONSETS,
        "kubectl --namespace=kube-system logs": _NO_DAEMONSETS,
        "kubectl --namespace=kube-system exec": _NO_DAEMONSETS,
        "kubectl apply -k": _RENDERED,
        "kubectl delete -k": _RENDERED,
    },
    "docs/modes/iptables.md": {"modprobe": "changes the machine's kernel"},
    "docs/modes/ipvs.md": {
        "VIPWIRE_CONFORMANCE": "boots a guest for tests that guests run, see tests/proxy/kernel/guests.py"
    },
    "docs/modes/nftables.md": {
        "nft list set ip vipwire connections": "needs --count-traffic: tests/proxy/kernel/test_nftables_layout.py",
        "vipwire proxy --offload": "needs a kernel with flowtables: tests/proxy/kernel/full/offloading.py",
    },
    "docs/performance.md": {"": _BENCH},
    "docs/platforms/eks.md": {"kubectl --namespace=kube-system delete daemonset": _NO_DAEMONSETS},
    "docs/scale.md": {"": _BENCH},
    "docs/stores.md": {"pip install": _WHEEL},
    "docs/three-servers.md": {"": _WALK},
}
"""Of a page: how a command begins, and why nobody runs it; an empty beginning is that of every command."""

NO_PROGRAM: Final = frozenset({"cd", "cat", "do", "done", "echo", "export", "for"})
"""Words of the shell: `bash -n` reads them."""


def reasons(example: Example, command: str) -> tuple[tuple[str, str], ...]:
    """Find why a command of an example is not run: the tables' pages ("" for any) and beginnings that fit."""
    page = example.where.partition(":")[0]
    both = (example.command, command)
    own = [(page, begin) for begin in NOT_RUN.get(page, ()) if any(each.startswith(begin) for each in both)]
    return tuple(own or [("", begin) for begin in EVERYWHERE if command.startswith(begin)])
