"""The objects of each overlay of `deploy/`, rendered by kubectl and recorded in `golden/`."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("nftables", "iptables", "ipvs", "userspace", "ebpf")
GOLDEN = ROOT / "tests/fakes/golden"
KUBECTL = shutil.which("kubectl")

Object = dict[str, Any]


def rendered(folder: Path) -> list[Object]:
    assert KUBECTL is not None
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if os.environ.get("UPDATE_GOLDEN") and folder.parent.name == "overlays":
        (GOLDEN / f"deploy-{folder.name}.yaml").write_text(done.stdout, encoding="utf-8")
    return list(yaml.safe_load_all(done.stdout))


def recorded(overlay: str) -> list[Object]:
    return list(yaml.safe_load_all((GOLDEN / f"deploy-{overlay}.yaml").read_text(encoding="utf-8")))


def one(objects: list[Object], kind: str) -> Object:
    """Return the only object of a kind."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod_of(objects: list[Object]) -> Object:
    """Return the Pod's spec of the DaemonSet."""
    spec: Object = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def containers(pod: Object) -> list[Object]:
    """Return all containers of a Pod in the order of their start."""
    return [*pod.get("initContainers", ()), *pod["containers"]]
