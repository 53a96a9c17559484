"""Pods: columns and validation. A Pod is a workload that already runs, declared with its address."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from vipwire_up.api.kinds.pod_types import POD_TYPES
from vipwire_up.api.objects import names
from vipwire_up.api.objects.addresses import NO_ADDRESS, family_of, find_endpoint_problem, find_host_problem
from vipwire_up.api.objects.columns import AGE, NAME, NONE, column_of_path, field_readers
from vipwire_up.api.objects.errors import Cause, duplicate, forbidden, invalid, missing, required
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.quantity import check_amounts, check_resources
from vipwire_up.api.objects.resource import Column, Object, Resource

_CHANGEABLE: Final = ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds", "schedulingGates")


def _default_pod(new: Object) -> None:
    spec, status = new["spec"], new.get("status") or {}
    for container in (spec.get("containers") or []) + (spec.get("initContainers") or []):
        container.setdefault("resources", {})
        if container.get("image"):
            tag = container["image"].rpartition("/")[2].partition("@")[0].partition(":")[2]
            container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")
    if status.get("podIP") and not status.get("podIPs"):
        status["podIPs"] = [{"ip": status["podIP"]}]
    elif status.get("podIPs") and not status.get("podIP"):
        status["podIP"] = status["podIPs"][0].get("ip")


def _prepare_pod(new: Object, old: Object | None) -> None:
    if old is None and not new.get("status"):
        new["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def _check_pod(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new["spec"]
    if not spec.get("containers"):
        yield required("spec.containers")
    volumes = set[str]()
    for index, volume in enumerate(spec.get("volumes") or ()):
        name = volume.get("name") or ""
        if problem := names.check_label(name):
            yield invalid(f"spec.volumes[{index}].name", name, problem)
        elif name in volumes:
            yield duplicate(f"spec.volumes[{index}].name", name)
        volumes.add(name)
    seen = set[str]()
    for part in ("containers", "initContainers"):
        yield from _check_containers(spec.get(part) or [], f"spec.{part}", seen, volumes)
    for name in ("hostname", "subdomain"):
        if spec.get(name) and (problem := names.check_label(spec[name])):
            yield invalid(f"spec.{name}", spec[name], problem)
    yield from names.apply_name_rule(spec.get("nodeName"), names.check_subdomain, "spec.nodeName")
    yield from check_amounts(spec.get("overhead") or {}, "spec.overhead")
    yield from _check_addresses(new.get("status") or {}, old)
    if old is not None:
        yield from _check_unchanged(spec, old.get("spec") or {})


def _check_containers(containers: list[Object], base: str, seen: set[str], volumes: set[str]) -> Iterator[Cause]:
    for index, container in enumerate(containers):
        path, name = f"{base}[{index}]", container.get("name") or ""
        if not name:
            yield required(f"{path}.name")
        elif problem := names.check_label(name):
            yield invalid(f"{path}.name", name, problem)
        elif name in seen:
            yield duplicate(f"{path}.name", name)
        if not container.get("image"):
            yield required(f"{path}.image")
        seen.add(name)
        yield from _check_ports(container, path)
        yield from _check_probes(container, path)
        yield from check_resources(container.get("resources") or {}, f"{path}.resources")
        yield from _check_mounts(container, path, volumes)


def _check_mounts(container: Object, path: str, volumes: set[str]) -> Iterator[Cause]:
    places = set[str]()
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        where, name, place = f"{path}.volumeMounts[{index}]", mount.get("name") or "", mount.get("mountPath") or ""
        if name not in volumes:
            yield missing(f"{where}.name", name)
        if place in places:
            yield invalid(f"{where}.mountPath", place, "must be unique")
        places.add(place)


def _warn_pod(new: Object, old: Object | None) -> Iterator[str]:
    if old is not None:
        return
    found = [entry.get("ip") or "" for entry in value_at(new, "status", "podIPs") or ()]
    if not found:
        ways = "metadata.annotations[vipwire.io/address], or status.podIP"
        yield f"vipwire starts no containers: a Pod must already run, and must have an address ({ways})"
    for address in found:
        if problem := find_endpoint_problem(address):
            yield f"{address} cannot be an endpoint: an endpoint {problem}"


def _check_ports(container: Object, path: str) -> Iterator[Cause]:
    seen = set[str]()
    for index, port in enumerate(container.get("ports") or ()):
        if not (name := port.get("name")):
            continue
        if problem := names.check_port_name(name):
            yield invalid(f"{path}.ports[{index}].name", name, problem)
        elif name in seen:
            yield duplicate(f"{path}.ports[{index}].name", name)
        seen.add(name)


def _check_addresses(status: Object, old: Object | None) -> Iterator[Cause]:
    known = value_at(old, "status", "podIPs") or () if old is not None else ()
    for index, entry in enumerate(status.get("podIPs") or ()):
        if not family_of(entry.get("ip") or ""):
            yield invalid(f"status.podIPs[{index}].ip", entry.get("ip"), NO_ADDRESS)
        elif (problem := find_host_problem(entry["ip"])) and entry not in known:
            yield invalid(f"status.podIPs[{index}].ip", entry["ip"], problem)


def _check_unchanged(spec: Object, old: Object) -> Iterator[Cause]:
    """Refuse changes of a Pod's spec, except of its images and deadlines."""

    def fixed(value: Object) -> Any:
        kept = {key: part for key, part in value.items() if key not in _CHANGEABLE}
        strip = [
            {k: v for k, v in c.items() if k not in ("image", "imagePullPolicy")}
            for c in kept.get("containers") or ()
        ]
        return kept | {"containers": strip}

    if fixed(spec) != fixed(old):
        why = (
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
        )
        allowed = "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
        rest = "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
        yield forbidden("spec", f"{why}{allowed}{rest}")


def _format_status(value: Object, _now: datetime) -> str:
    if value_at(value, "metadata", "deletionTimestamp"):
        return "Terminating"
    for container in value_at(value, "status", "containerStatuses") or ():
        for state in ("waiting", "terminated"):
            if reason := value_at(container, "state", state, "reason"):
                return str(reason)
    return str(value_at(value, "status", "reason") or value_at(value, "status", "phase") or "Unknown")


def _format_ready(value: Object, _now: datetime) -> str:
    statuses = value_at(value, "status", "containerStatuses")
    total = len(value_at(value, "spec", "containers") or ())
    if statuses is None:  # only a readiness condition says whether the Pod is ready
        return f"{total if _condition_status(value, 'Ready') == 'True' else 0}/{total}"
    return f"{sum(bool(status.get('ready')) for status in statuses)}/{total}"


def _condition_status(value: Object, kind: str) -> str:
    conditions = value_at(value, "status", "conditions") or ()
    return next((str(entry.get("status")) for entry in conditions if entry.get("type") == kind), "")


def _count_restarts(value: Object, _now: datetime) -> str:
    return str(sum(status.get("restartCount", 0) for status in value_at(value, "status", "containerStatuses") or ()))


def _format_readiness_gates(value: Object, _now: datetime) -> str:
    gates = value_at(value, "spec", "readinessGates") or ()
    met = sum(_condition_status(value, gate.get("conditionType", "")) == "True" for gate in gates)
    return f"{met}/{len(gates)}" if gates else NONE


_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")


def _check_probes(container: Object, path: str) -> Iterator[Cause]:
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name) is not None:
            yield from _check_probe(container[name], name, f"{path}.{name}")


def _check_probe(probe: Object, name: str, path: str) -> Iterator[Cause]:
    yield from _check_handler(probe, path)
    if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        yield invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and name == "readinessProbe":
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")


def _check_handler(probe: Object, path: str) -> Iterator[Cause]:
    given = [name for name in _HANDLERS if probe.get(name) is not None]
    if not given:
        yield required(path, "must specify a handler type")
    for name in given[1:]:
        yield forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    for name in given[:1]:
        where = f"{path}.{name}"
        if name == "exec" and not value_at(probe, name, "command"):
            yield required(f"{where}.command")
        if name in ("httpGet", "tcpSocket"):
            yield from names.check_port(probe[name].get("port"), f"{where}.port")


PODS: Final = Resource(
    kind="Pod",
    plural="pods",
    type=POD_TYPES["Pod"],
    short_names=("po",),
    categories=("all",),
    has_status=True,
    declares_status=True,
    shown_when_deleted=True,
    default=_default_pod,
    prepare=_prepare_pod,
    check=_check_pod,
    warn=_warn_pod,
    fields={
        **field_readers("spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"),
        "spec.hostNetwork": lambda value: str(bool(value_at(value, "spec", "hostNetwork"))).lower(),
    },
    columns=(
        NAME,
        Column("Ready", _format_ready),
        Column("Status", _format_status),
        Column("Restarts", _count_restarts),
        AGE,
        Column("IP", column_of_path("status", "podIP"), priority=1),
        Column("Node", column_of_path("spec", "nodeName"), priority=1),
        Column("Nominated Node", column_of_path("status", "nominatedNodeName"), priority=1),
        Column("Readiness Gates", _format_readiness_gates, priority=1),
    ),
)
