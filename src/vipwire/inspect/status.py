"""`vipwire status`: the tables of a status document."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.document import Document, share_text, state_words
from vipwire.inspect.show import coloured, shortened, table

_MOST = 4
"""Lines of one cell where not everything was asked for."""


def status_view(document: Document, *, wide: bool, details: bool) -> RenderableType:
    """Lay out a status document; with `details`, all endpoints of few Services."""
    parts: list[RenderableType] = [_head(document), Text()]
    if document["services"]:
        parts.append(_services(document, wide=wide, most=None if wide or details else _MOST))
    else:
        parts.append(Text("There are no Services with a ClusterIP."))
    if details:
        parts.extend(_details(document))
    for problem in document["problems"]:
        text = f"{problem['kind']} {problem['object']}: {problem['field']}: {problem['message']}"
        parts.append(Text(f"problem: {text}", style="yellow"))
    return Group(*parts)


def _head(document: Document) -> Text:
    text = Text.assemble(("node ", "dim"), document["node"], ("  mode ", "dim"), document["mode"])
    for family in document["families"]:
        text.append(f"\n{family['family']}: ", style="dim")
        text.append(coloured(family["state"]))
        text.append(_family_words(family))
    return text


def _family_words(family: Document) -> str:
    if family.get("reason"):
        return f" ({family['reason']})"
    if family["state"] == "not programmed":
        return f" ({family['wantedObjects']} objects to write)"
    counts = [f"{family[what]} {what}" for what in ("missing", "different", "surplus") if family[what]]
    return f" ({family['observedObjects']} objects{''.join(f', {count}' for count in counts)})"


def _services(document: Document, *, wide: bool, most: int | None) -> RenderableType:
    columns = ["service", "type", "reached at", "endpoints", "share", "policy", "kernel"]
    rows = []
    for service in document["services"]:
        if not service["ports"]:
            name = f"{service['namespace']}/{service['name']}"
            rows.append(
                [name, service["type"], coloured("no usable port", "warning"), "-", "-", "-", _kernel(service)]
            )
        for port in service["ports"]:
            rows.append(_row(service, port, most))
            if wide:
                rows[-1].append(shortened(sorted({each["node"] or "-" for each in port["endpoints"]}), None))
                rows[-1].append(shortened([f"{k}={v}" for k, v in service["annotations"].items()], None))
    return table([*columns, *(["nodes", "annotations"] if wide else [])], rows)


def _row(service: Document, port: Document, most: int | None) -> list[str | Text]:
    name = f"{service['namespace']}/{service['name']}" + (f":{port['name']}" if port["name"] else "")
    ends = _endpoints(port)
    return [
        name,
        service["type"],
        shortened([_place(each) for each in port["frontends"]], most),
        shortened([end for end, _ in ends], most),
        shortened([share for _, share in ends], most if len(ends) != most else None),
        shortened(list(policy_words(service)), None),
        _kernel(service),
    ]


def _place(frontend: Document) -> str:
    if frontend["address"] is None:
        return f"node port {frontend['port']}/{frontend['protocol']}" + _family_mark(frontend)
    address = f"[{frontend['address']}]" if ":" in frontend["address"] else frontend["address"]
    kind = "" if frontend["kind"] == "cluster IP" else f" ({frontend['kind']})"
    return f"{address}:{frontend['port']}/{frontend['protocol']}{kind}"


def _family_mark(frontend: Document) -> str:
    return f" {frontend['family']}"


def _endpoints(port: Document) -> list[tuple[str, str]]:
    """Pair each endpoint with the share of the connections to the first frontend of its family."""
    ends: list[tuple[str, str]] = []
    for family in dict.fromkeys(each["family"] for each in port["frontends"]):
        first = next(each for each in port["frontends"] if each["family"] == family)
        if first["action"] != "forward":
            ends.append((f"none: {first['action']}", first["reason"].partition(" ")[2]))
            continue
        for target in first["endpoints"]:
            here = " (here)" if target["local"] else ""
            ends.append((f"{endpoint_text(target)}{here}", share_text(target["share"])))
    return ends


def endpoint_text(target: Document) -> str:
    """Write an endpoint of a document: `10.0.0.1:80`, `[fd00::1]:80`."""
    address = target["address"]
    return f"[{address}]:{target['port']}" if ":" in address else f"{address}:{target['port']}"


def policy_words(service: Document) -> Iterator[str]:
    """Say what is unusual in a Service's policies; "default" if nothing is."""
    found = []
    if service["internalTrafficPolicy"] != "Cluster":
        found.append(f"internal {service['internalTrafficPolicy']}")
    if service["type"] != "ClusterIP" and service["externalTrafficPolicy"] != "Cluster":
        found.append(f"external {service['externalTrafficPolicy']}")
    if service["sessionAffinitySeconds"] is not None:
        found.append(f"ClientIP {service['sessionAffinitySeconds']} s")
    chosen = [each["algorithm"] for port in service["ports"] for each in port["frontends"] if "algorithm" in each]
    if chosen and chosen[0] != "random":
        found.append(chosen[0])
    if service["loadBalancerSourceRanges"]:
        found.append("source ranges")
    yield from found or ["default"]


def _kernel(service: Document) -> Text:
    text = Text()
    words = [(each["family"], state_words(each), each["state"]) for each in service["kernel"]]
    if len({said for _, said, _ in words}) == 1:
        words = [("", *words[0][1:])]
    for family, said, state in words:
        text.append("\n" if text else "")
        text.append(f"{family} " if family else "")
        text.append(coloured(said, state))
    for lost in service["lost"]:
        text.append(f"\nlost {lost['frontend']} to {lost['to']}", style="yellow")
    return text or Text("-")


def _details(document: Document) -> Iterator[RenderableType]:
    for service in document["services"]:
        for port in service["ports"]:
            rows = [_usage(usage) for usage in port["endpoints"]]
            name = f"{service['namespace']}/{service['name']}:{port['name'] or port['port']}"
            yield Text(f"\nEndpoints of {name}", style="bold")
            if rows:
                yield table(["endpoint", "node", "conditions", "used by policy", "why"], rows)
            else:
                yield Text("none: no EndpointSlice has an endpoint for this port")
        if check := service.get("healthCheckNodePort"):
            yield Text(f"\nhealth check on node port {check['port']}: {check['localEndpoints']} endpoints here")


def _usage(usage: dict[str, Any]) -> list[str | Text]:
    conditions = [word for word in ("ready", "serving", "terminating") if usage[word]]
    used = "/".join(usage["forPolicies"])
    return [
        endpoint_text(usage),
        (usage["node"] or "-") + (" (here)" if usage["local"] else ""),
        ", ".join(conditions) or "not ready",
        coloured(used or "none", "ok" if used else "warning"),
        usage["why"],
    ]
