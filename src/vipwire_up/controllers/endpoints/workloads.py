"""Admission hook for Pods as workloads that already run: an address in an annotation, readiness.

    metadata.annotations["vipwire.io/address"]: 10.0.0.5            or 10.0.0.5,fd00::5

A Pod with this annotation needs no status in its manifest: it runs, at these addresses. It is Ready at once, unless
one of its containers has a readinessProbe: then the probe's result decides.
"""

import ipaddress
from collections.abc import Callable
from datetime import datetime
from typing import Final

from vipwire.model.times import format_time
from vipwire_up.api.admission import AdmissionRequest, Operation
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.objects.errors import invalid, not_valid
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object

ADDRESS: Final = "vipwire.io/address"


def start_workload(clock: Callable[[], datetime], attempt: AdmissionRequest) -> None:
    """Fill in the status of a Pod with the annotation. Raise ApiError for an invalid address."""
    if attempt.resource is not PODS or attempt.subresource or attempt.new is None:
        return
    if attempt.operation is Operation.DELETE:
        return
    pod = attempt.new
    text = (value_at(pod, "metadata", "annotations") or {}).get(ADDRESS)
    if text is not None and text != (value_at(attempt.old, "metadata", "annotations") or {}).get(ADDRESS):
        place_on_node(pod, _parse_addresses(pod, text), format_time(clock()))


_NOT_PROBED: Final = "no container has been probed yet"


def place_on_node(pod: Object, addresses: list[str], now: str) -> None:
    status = pod.setdefault("status", {})
    status |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
    if status.get("phase") in (None, "Pending"):
        status |= {"phase": "Running", "startTime": now}
    given = status.get("conditions") or []
    if not any(entry.get("type") == "Ready" for entry in given):
        status["conditions"] = merge_conditions(given, pod, None if readiness_probes_of(pod) else "", now)


def readiness_probes_of(pod: Object) -> list[tuple[str, Object]]:
    containers = value_at(pod, "spec", "containers") or ()
    return [(each["name"], each["readinessProbe"]) for each in containers if each.get("readinessProbe")]


def merge_conditions(given: list[Object], pod: Object, problem: str | None, now: str) -> list[Object]:
    """Add the conditions that a kubelet writes for a Pod that runs; a time changes only with its state.

    `problem` "" means that all containers are ready; None, that none was probed yet.
    """
    before = {each.get("type"): each for each in given}
    gates = [gate.get("conditionType") for gate in value_at(pod, "spec", "readinessGates") or ()]
    closed = [str(gate) for gate in gates if before.get(gate, {}).get("status") != "True"]
    containers = _build_condition(
        "ContainersReady", "ContainersNotReady", _NOT_PROBED if problem is None else problem
    )
    ready = containers | {"type": "Ready"}
    if containers["status"] == "True" and closed:
        ready = _build_condition("Ready", "ReadinessGatesNotReady", f"not True: {', '.join(closed)}")
    made = {
        each["type"]: each
        for each in (_build_condition("PodScheduled"), _build_condition("Initialized"), containers, ready)
    }
    for kind, condition in made.items():
        old = before.get(kind, {})
        kept = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
        condition["lastTransitionTime"] = kept or now
    return [*(each for each in given if each.get("type") not in made), *made.values()]


def _build_condition(kind: str, reason: str = "", message: str = "") -> Object:
    if not message:
        return {"type": kind, "status": "True"}
    return {"type": kind, "status": "False", "reason": reason, "message": message}


def _parse_addresses(pod: Object, text: str) -> list[str]:
    path = f"metadata.annotations[{ADDRESS}]"
    try:
        found = [ipaddress.ip_address(part.strip()) for part in text.split(",")]
    except ValueError:
        why = "must be an IP address, or one of each family, separated by a comma"
        raise not_valid("Pod", "", pod["metadata"]["name"], (invalid(path, text, why),)) from None
    if len({address.version for address in found}) < len(found):
        why = "may only hold up to 2 addresses, one of each family"
        raise not_valid("Pod", "", pod["metadata"]["name"], (invalid(path, text, why),))
    return [str(address) for address in found]
