"""The trials of the images: a Pod of deploy/, the user, and the expected answer."""

import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import dns.exception
import dns.resolver
import yaml
from scripts.images import world

DEPLOY = Path(__file__).parents[2] / "deploy"


def page(url: str) -> tuple[int, str]:
    """Request a page; return status and text, or 0 and the reason without an answer."""
    request = urllib.request.Request(url, headers={"Host": world.HOST})  # noqa: S310  # ours, and http
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return answer.status, answer.read().decode().strip()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)


def _vip() -> str:
    return page(f"http://{world.VIP}/")[1]


def _site() -> str:
    return page("http://127.0.0.1/")[1]


def _gateway() -> str:
    return page(f"http://{world.ADDRESS}:{world.GATEWAY_PORT}/")[1]


def _name() -> str:
    asked = dns.resolver.Resolver(configure=False)
    asked.nameservers = [world.ADDRESS]
    try:
        return ", ".join(map(str, asked.resolve("pods.default.svc.cluster.local.", "A", lifetime=5)))
    except dns.exception.DNSException as error:
        return str(error)


@dataclass(frozen=True, slots=True)
class Trial:
    """A Pod's trial. `ask` returns the address of the endpoint that its Service reaches, or the error."""

    folder: Path
    ask: Callable[[], str]
    mode: str = ""
    user: str = "system:kube-proxy"
    stays: bool = False
    """Whether the Service answers after the Pod's end."""
    killed: str = ""
    """Part of the command line of processes to kill, which others must restart."""


def rendered(folder: Path) -> list[Any]:
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True)
    return list(yaml.safe_load_all(done.stdout))


def pod_of(objects: list[Any]) -> Any:
    """Return the only Pod's spec."""
    (found,) = (each["spec"]["template"]["spec"] for each in objects if each["kind"] in {"DaemonSet", "Deployment"})
    return found


def _proxy(mode: str, *, stays: bool = True, killed: str = "") -> Trial:
    return Trial(DEPLOY / "overlays" / mode, _vip, mode, stays=stays, killed=killed)


TRIALS: Final = {
    "nftables": _proxy("nftables"),
    "iptables": _proxy("iptables"),
    "ipvs": _proxy("ipvs"),
    "ebpf": _proxy("ebpf"),
    "userspace": _proxy("userspace", stays=False, killed="vipwire.relay"),
    "dns": Trial(DEPLOY / "dns", _name, user="viewer"),
    # `vipwire up` has no user for an Ingress controller.
    "ingress": Trial(DEPLOY / "ingress", _site, user="kubernetes-admin", killed="/haproxy "),
    "gateway": Trial(DEPLOY / "gateway", _gateway, user="kubernetes-admin", killed="/haproxy "),
}
