"""One line for each Service: what the list shows and the search finds. Made of the documents of `status`."""

from collections.abc import Iterable
from typing import Any, Final

from vipwire.inspect.command.names import endpoint_text, service_text
from vipwire.inspect.status.document import Document

MOST_ENDPOINTS: Final = 64
"""Endpoints of a Service that the search knows."""


def row_of(service: Document) -> Document:
    """Build the row of a Service's document."""
    endpoints = [each for port in service["ports"] for each in port["endpoints"]]
    states = [each["state"] for each in service["kernel"]]
    worst = next((state for state in states if state != "as planned"), "as planned" if states else "-")
    return {
        "name": service_text(service),
        "type": service["type"],
        "at": list(dict.fromkeys(_place(each) for port in service["ports"] for each in port["frontends"])),
        "endpoints": _many(endpoints),
        "used": _many(each for each in endpoints if each["forPolicies"]),
        "drained": _many(each for each in endpoints if is_drained(each)),
        "ejected": _many(each for each in endpoints if "ejectedUntil" in each),
        "refused": _refused(service),
        "state": worst,
        "to": sorted({endpoint_text(each) for each in endpoints})[:MOST_ENDPOINTS],
    }


def _place(frontend: Document) -> str:
    if frontend["address"] is None:
        return f":{frontend['port']}/{frontend['protocol']}"
    return f"{endpoint_text(frontend)}/{frontend['protocol']}"


def _many(endpoints: Iterable[Document]) -> int:
    """Count endpoints as people do: Pods, which have an address of each family and may serve several ports."""
    addresses: dict[str, set[str]] = {}
    for each in endpoints:
        addresses.setdefault(each["family"], set()).add(each["address"])
    return max(map(len, addresses.values()), default=0)


def is_drained(usage: dict[str, Any]) -> bool:
    """Report whether an endpoint's line says that it is drained."""
    return str(usage["why"]).startswith("drained")


def _refused(service: Document) -> str:
    """Say why new connections to a Service's first frontend get nowhere; "" if they do."""
    for port in service["ports"]:
        for frontend in port["frontends"]:
            if frontend["action"] != "forward":
                return f"{frontend['action']}: {frontend['reason'].partition(' ')[2]}"
    return ""
