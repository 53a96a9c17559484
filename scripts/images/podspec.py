"""Translates a Pod's container into arguments of `podman run`, as the kubelet would run it.

Supports the fields of the Pods in deploy/. Any other is an error, because a missing capability or mount could make a
Pod run here that does not run on a node, or the reverse. `_NOT_HERE` lists fields omitted on purpose: those that need
a kubelet (probes, which the caller requests), a registry or cgroups (requests).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Object = dict[str, Any]

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The kubelet's mount of the token and ca.crt of a Pod's service account."""
_NOT_HERE = {"name", "image", "imagePullPolicy", "resources", "ports", "livenessProbe", "readinessProbe"}
_SECCOMP = Path("/usr/share/containers/seccomp.json")
_PROPAGATION = {"None": "rprivate", "HostToContainer": "rslave", "Bidirectional": "rshared"}
_KNOWN = {"command", "args", "env", "securityContext", "volumeMounts"}
_POD = {"containers", "initContainers", "volumes", "hostNetwork", "shareProcessNamespace", "securityContext"}
_POD_NOT_HERE = {
    "serviceAccountName",
    "priorityClassName",
    "nodeSelector",
    "tolerations",
    "topologySpreadConstraints",
    "terminationGracePeriodSeconds",
    "dnsPolicy",
    "automountServiceAccountToken",
}
_CONTEXT = {
    "privileged",
    "runAsNonRoot",
    "runAsUser",
    "allowPrivilegeEscalation",
    "readOnlyRootFilesystem",
    "capabilities",
    "seccompProfile",
}


class UnknownFieldError(ValueError):
    """The Pod has a field without a translation."""


@dataclass(frozen=True, slots=True)
class PodHost:
    """The values and folders that a host gives a Pod.

    `volumes` has a folder for each volume, and `account`. `fields` are the values of the Pod's field references,
    `environ` the kubelet's variables; `withheld` are capabilities that this machine lacks.
    """

    volumes: Path
    fields: Mapping[str, str]
    environ: Mapping[str, str]
    withheld: frozenset[str] = frozenset()


def sysctls(pod: Object) -> dict[str, str]:
    """Return the kernel settings of a Pod's network namespace, which the caller sets."""
    return {each["name"]: each["value"] for each in pod.get("securityContext", {}).get("sysctls", ())}


@dataclass(frozen=True, slots=True)
class Probe:
    """A page that the kubelet requests; `host` is "" for the Pod's own address."""

    port: int
    path: str
    host: str = ""


def containers(pod: Object) -> tuple[list[Object], list[Object]]:
    """Return the init containers and the others of a Pod's spec."""
    _refuse(pod, _POD | _POD_NOT_HERE, "spec")
    _refuse(pod.get("securityContext", {}), {"sysctls"}, "spec.securityContext")
    return pod.get("initContainers", []), pod["containers"]


def probe(container: Object, kind: str) -> Probe:
    asked = container[kind]["httpGet"]
    ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
    return Probe(ports.get(asked["port"], asked["port"]), asked["path"], asked.get("host", ""))


def run_arguments(pod: Object, container: Object, place: PodHost) -> list[str]:
    """Return the arguments of `podman run`: capabilities, mounts, environment, image, command.

    The caller provides the network: the node's for `hostNetwork`, else the Pod's.
    """
    _refuse(container, _KNOWN | _NOT_HERE, container["name"])
    environ = dict(place.environ) | _environ(container, place)
    command = [_expanded(each, environ) for each in container["command"]]
    return [
        "--network=host",
        # Like a Pod's pause container: a first process that collects orphans.
        *(["--init"] if pod.get("shareProcessNamespace") else []),
        f"--volume={place.volumes / 'account'}:{ACCOUNT}:ro",
        *_rights(container.get("securityContext", {}), place.withheld, place.volumes),
        *_mounts(pod, container, place.volumes),
        *(f"--env={name}={value}" for name, value in environ.items()),
        f"--entrypoint={json.dumps(command)}",
        container["image"],
        *(_expanded(each, environ) for each in container.get("args", ())),
    ]


def _with_bpf(to: Path) -> Path:
    """Write podman's seccomp profile with bpf(2), which containerd's profile of 1.7 admits with this right."""
    profile = json.loads(_SECCOMP.read_text(encoding="utf-8"))
    for each in profile["syscalls"]:
        each["names"] = [name for name in each["names"] if name != "bpf"]
    profile["syscalls"].append({"names": ["bpf"], "action": "SCMP_ACT_ALLOW", "args": []})
    to.write_text(json.dumps(profile), encoding="utf-8")
    return to


def _rights(context: Object, withheld: frozenset[str], folder: Path) -> Iterator[str]:
    _refuse(context, _CONTEXT, "securityContext")
    if context.get("readOnlyRootFilesystem"):
        # podman would mount a tmpfs at /run and /tmp; the kubelet mounts only the Pod's volumes.
        yield from ("--read-only", "--read-only-tmpfs=false")
    if context.get("privileged"):
        yield "--privileged"
        return
    if context.get("runAsUser") is not None:
        yield f"--user={context['runAsUser']}"
    if not context.get("allowPrivilegeEscalation", True):
        yield "--security-opt=no-new-privileges"
    if context.get("seccompProfile", {"type": "RuntimeDefault"}) != {"type": "RuntimeDefault"}:
        raise UnknownFieldError(f"seccompProfile {context['seccompProfile']}")
    capabilities = context.get("capabilities", {})
    yield from (f"--cap-drop={each}" for each in capabilities.get("drop", ()))
    yield from (f"--cap-add={each}" for each in capabilities.get("add", ()) if each not in withheld)
    if "BPF" in capabilities.get("add", ()):
        yield f"--security-opt=seccomp={_with_bpf(folder / 'seccomp.json')}"


def _mounts(pod: Object, container: Object, folder: Path) -> Iterator[str]:
    volumes = {each["name"]: each for each in pod.get("volumes", ())}
    for mount in container.get("volumeMounts", ()):
        _refuse(mount, {"name", "mountPath", "readOnly", "mountPropagation"}, "volumeMounts")
        volume, path = volumes[mount["name"]], mount["mountPath"]
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            yield f"--tmpfs={path}:rw,mode=0777"
            continue
        source = volume["hostPath"]["path"] if "hostPath" in volume else folder / volume["name"]
        options = ["ro"] if mount.get("readOnly") else []
        options += [_PROPAGATION[mount["mountPropagation"]]] if "mountPropagation" in mount else []
        yield ":".join((f"--volume={source}", path, *([",".join(options)] if options else [])))


def _environ(container: Object, place: PodHost) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in container.get("env", ()):
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            found[each["name"]] = place.fields[source["fieldRef"]["fieldPath"]]
        elif not source:
            found[each["name"]] = _expanded(each["value"], found)
        elif not source.get("secretKeyRef", {}).get("optional"):
            raise UnknownFieldError(f"env {each}")
    return found


def _expanded(text: str, environ: Mapping[str, str]) -> str:
    """Replace $(NAME) as the kubelet does in commands, arguments and values; unknown names stay."""
    return re.sub(r"\$\((\w+)\)", lambda match: environ.get(match[1], match[0]), text)


def _refuse(given: Object, known: set[str], where: str) -> None:
    if unknown := given.keys() - known:
        raise UnknownFieldError(f"{where}: {', '.join(sorted(unknown))}")
