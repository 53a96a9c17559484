"""Names the parts of a document: what `-o name` prints, a line each, and the texts of Services and endpoints."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from vipwire.linux.netlink.conntrack import FlowChange


def service_text(service: Any) -> str:
    """Write the namespace and name of a Service: `default/web`."""
    return f"{service['namespace']}/{service['name']}"


def port_text(service: Any, port: Any) -> str:
    """Write a Service port: `default/web:http`, without the colon if it has no name."""
    return service_text(service) + (f":{port['name']}" if port["name"] else "")


def endpoint_text(part: Any) -> str:
    """Write an address and port: `10.0.0.1:80`, `[fd00::1]:80`, `10.0.0.1:80-89`."""
    address, last = part["address"], f"-{part['lastPort']}" if "lastPort" in part else ""
    return f"[{address}]:{part['port']}{last}" if ":" in address else f"{address}:{part['port']}{last}"


def names_of(document: Any) -> Iterable[str]:
    """Name the Services, endpoints, findings or objects of a document; none of a document that sums up."""
    kind = document.get("kind", "Event")
    return _NAMES[kind](document) if kind in _NAMES else ()


def _services(document: Any) -> Iterable[str]:
    return map(service_text, document["services"])


def _new_connection(event: Any) -> Iterable[str]:
    return (event["endpoint"],) if event["event"] == FlowChange.NEW.value and event["endpoint"] else ()


_NAMES: Final[Mapping[str, Callable[[Any], Iterable[str]]]] = {
    "Status": _services,
    "Plan": _services,
    "Explanation": lambda document: map(endpoint_text, document["endpoints"]),
    "Check": lambda document: (
        f"{each['area']}/{each['what']}" for each in document["findings"] if each["level"] in ("bad", "warning")
    ),
    "Diff": lambda document: (name for family in document["families"] for name in family["objects"]),
    "Drain": lambda document: (document["endpoint"],),
    "DrainList": lambda document: (each["endpoint"] for each in document["drained"]),
    "Top": lambda document: dict.fromkeys(
        row["service"].rpartition(":")[0] or row["service"] for row in document["rows"]
    ),
    "Event": _new_connection,
}
