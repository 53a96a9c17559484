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
from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.kinds.pod import PODS
from vipwire_up.api.objects.errors import invalid, not_valid
from vipwire_up.api.objects.object import at
from vipwire_up.api.objects.resource import Object

ADDRESS: Final = "vipwire.io/address"


class Workloads:
    """The hook. `clock` returns the time of conditions."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Fill in the status of a Pod with the annotation. Raise ApiError for an invalid address."""
        if attempt.resource is not PODS or attempt.subresource or attempt.new is None:
            return None
        if attempt.operation is Operation.DELETE:
            return None
        pod = attempt.new
        text = (at(pod, "metadata", "annotations") or {}).get(ADDRESS)
        if text is not None and text != (at(attempt.old, "metadata", "annotations") or {}).get(ADDRESS):
            place(pod, _addresses(pod, text), format_time(self._clock()))
        return None


def place(pod: Object, addresses: list[str], now: str) -> None:
    status = pod.setdefault("status", {})
    status |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
    if status.get("phase") in (None, "Pending"):
        status |= {"phase": "Running", "startTime": now}
    if not any(entry.get("type") == "Ready" for entry in status.get("conditions") or ()):
        status["conditions"] = [
            *(status.get("conditions") or ()),
            ready_condition(None if probes(pod) else "", now),
        ]


def probes(pod: Object) -> list[tuple[str, Object]]:
    containers = at(pod, "spec", "containers") or ()
    return [(each["name"], each["readinessProbe"]) for each in containers if each.get("readinessProbe")]


def ready_condition(problem: str | None, now: str) -> Object:
    """Build the condition Ready: `problem` "" is True, a text False, None not yet probed."""
    condition = {"type": "Ready", "status": "False" if problem or problem is None else "True"}
    condition["lastTransitionTime"] = now
    if problem:
        condition |= {"reason": "ContainersNotReady", "message": problem}
    return condition


def _addresses(pod: Object, text: str) -> list[str]:
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
