"""`vipwire status`: the tables of a status document."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.show import coloured, shortened, size_text, table
from vipwire.inspect.status.document import Document, share_text, state_words
from vipwire.inspect.status.proxy import proxy_text

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
    parts.extend(_ejected(document))
    if document["refusals"] and (wide or details):
        parts.extend((Text("\nRefused", style="bold"), _refused(document)))
    elif document["refusals"]:
        parts.append(Text(f"\nrefused: {_refused_words(document)}", style="yellow"))
    for problem in document["problems"]:
        text = f"{problem['kind']} {problem['object']}: {problem['field']}: {problem['message']}"
        parts.append(Text(f"problem: {text}", style="yellow"))
    return Group(*parts)


def _ejected(document: Document) -> Iterator[Text]:
    for service in document["services"]:
        for port in service["ports"]:
            for usage in (each for each in port["endpoints"] if "ejectedUntil" in each):
                of = f"{service['namespace']}/{service['name']}" + (f":{port['name']}" if port["name"] else "")
                yield Text(f"\n{endpoint_text(usage)} of {of}: {usage['why']}", style="yellow")


def _head(document: Document) -> Text:
    text = Text.assemble(("node ", "dim"), document["node"], ("  mode ", "dim"), document["mode"])
    if "proxy" in document:
        text.append("\n").append_text(proxy_text(document["proxy"]))
    for family in document["families"]:
        text.append(f"\n{family['family']}: ", style="dim")
        text.append(coloured(family["state"]))
        text.append(_family_words(family))
    for each in document.get("standing", ()):
        text.append(f"\n{each['what']}: ", style="dim")
        text.append(each["said"], style="yellow" if each["remedy"] or each["bad"] else "")
        text.append(f" ({each['remedy']})" if each["remedy"] else "")
    return text


def _family_words(family: Document) -> str:
    if family.get("reason"):
        return f" ({family['reason']})"
    if family["state"] == "not programmed":
        return f" ({family['wantedObjects']} objects to write)"
    counts = [f"{family[what]} {what}" for what in ("missing", "different", "surplus") if family[what]]
    return f" ({family['observedObjects']} objects{''.join(f', {count}' for count in counts)})"


def _services(document: Document, *, wide: bool, most: int | None) -> RenderableType:
    columns = ["service", "type", "reached at", "endpoints", "share", "connections", "policy", "kernel"]
    rows = []
    for service in document["services"]:
        if not service["ports"]:
            name = f"{service['namespace']}/{service['name']}"
            rows.append(
                [name, service["type"], coloured("no usable port", "warning"), "-", "-", "-", "-", _kernel(service)]
            )
        for port in service["ports"]:
            rows.append(_row(service, port, most))
            if wide:
                rows[-1].append(_traffic(port["counts"]))
                rows[-1].append(shortened(sorted({each["node"] or "-" for each in port["endpoints"]}), None))
                rows[-1].append(shortened([f"{k}={v}" for k, v in service["annotations"].items()], None))
    return table([*columns, *(["traffic", "nodes", "annotations"] if wide else [])], rows)


def _row(service: Document, port: Document, most: int | None) -> list[str | Text]:
    name = f"{service['namespace']}/{service['name']}" + (f":{port['name']}" if port["name"] else "")
    ends = _endpoints(port)
    return [
        name,
        service["type"],
        shortened([_place(each) for each in (*port["frontends"], *port.get("ranges", ()))], most),
        shortened([end for end, _, _ in ends], most),
        shortened([share for _, share, _ in ends], most if len(ends) != most else None),
        _connections(port, [number for _, _, number in ends], most),
        shortened(list(policy_words(service)), None),
        _kernel(service),
    ]


def _place(frontend: Document) -> str:
    if frontend["address"] is None:
        return f"node port {frontend['port']}/{frontend['protocol']} {frontend['family']}{_listening(frontend)}"
    last = f"-{frontend['lastPort']}" if "lastPort" in frontend else ""
    kind = "" if frontend["kind"] == "cluster IP" else f" ({frontend['kind']})"
    return f"{endpoint_text(frontend)}{last}/{frontend['protocol']}{kind}{_listening(frontend)}"


def _listening(frontend: Document) -> str:
    """Show where clients connect instead, in a mode that listens and has no rules."""
    return f" at {', '.join(frontend['listening'])}" if frontend.get("listening") else ""


def _connections(port: Document, numbers: list[str], most: int | None) -> str:
    """Write what each endpoint was given, or all together where the endpoints do not all stand there."""
    counts = port["counts"]
    if counts is None or counts["connections"] is None:
        return "-"
    if most is not None and len(numbers) > most:
        return f"{counts['connections']} in all"
    return "\n".join(numbers) or str(counts["connections"])


def _traffic(counts: Document | None) -> str:
    """Write what went both ways."""
    if counts is None or counts["bytes"] is None:
        return "-"
    words = [f"in {size_text(counts['bytes'])}"]
    if counts["replyBytes"] is not None:
        words.append(f"out {size_text(counts['replyBytes'])}")
    return "\n".join(words)


def _refused_words(document: Document) -> str:
    totals: dict[str, int] = {}
    for each in document["refusals"]:
        totals[each["reason"]] = totals.get(each["reason"], 0) + each["packets"]
    return ", ".join(f"{number} packets by {reason}" for reason, number in totals.items())


def _refused(document: Document) -> RenderableType:
    rows = [
        [
            each["reason"],
            coloured(each["action"]),
            f"{each['service']}:{each['port']}" if each["port"] else each["service"] or "-",
            str(each["packets"]),
        ]
        for each in document["refusals"]
    ]
    return table(["reason", "action", "service", "packets"], rows)


def _endpoints(port: Document) -> list[tuple[str, str, str]]:
    """List each endpoint, its share of the connections to its family's first frontend, and its counts."""
    counted = {endpoint_text(each): each["counts"] for each in port["endpoints"]}
    ends: list[tuple[str, str, str]] = []
    for family in dict.fromkeys(each["family"] for each in port["frontends"]):
        first = next(each for each in port["frontends"] if each["family"] == family)
        if first["action"] != "forward":
            ends.append((f"none: {first['action']}", first["reason"].partition(" ")[2], ""))
            continue
        for target in first["endpoints"]:
            here = " (here)" if target["local"] else ""
            name = endpoint_text(target)
            number = (counted.get(name) or {}).get("connections")
            ends.append((f"{name}{here}", share_text(target["share"]), "-" if number is None else str(number)))
    return ends


def endpoint_text(target: Document) -> str:
    """Write the address and port of a part of a document: `10.0.0.1:80`, `[fd00::1]:80`."""
    address = target["address"]
    return f"[{address}]:{target['port']}" if ":" in address else f"{address}:{target['port']}"


def policy_words(service: Document) -> Iterator[str]:
    """Name the Service's policies that are not the default; "default" if all are."""
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
                titles = ["endpoint", "node", "conditions", "used by policy", "connections", "traffic", "why"]
                yield table(titles, rows)
            else:
                yield Text("none: no EndpointSlice has an endpoint for this port")
        if check := service.get("healthCheckNodePort"):
            here = f"{check['localEndpoints']} endpoint{'s' * (check['localEndpoints'] != 1)} here"
            yield Text(f"\nhealth check on node port {check['port']}: {here}")


def _given(usage: dict[str, Any]) -> str:
    """Write how many connections an endpoint was given, and how many it has, as far as the mode knows."""
    counts, now = usage["counts"], usage["open"]
    number = "-" if counts is None or counts["connections"] is None else str(counts["connections"])
    return number if now is None else f"{number} ({now['active']} open)"


def _usage(usage: dict[str, Any]) -> list[str | Text]:
    conditions = [word for word in ("ready", "serving", "terminating") if usage[word]]
    used = "/".join(usage["forPolicies"])
    return [
        endpoint_text(usage),
        (usage["node"] or "-") + (" (here)" if usage["local"] else ""),
        ", ".join(conditions) or "not ready",
        coloured(used or "none", "ok" if used else "warning"),
        _given(usage),
        _traffic(usage["counts"]),
        usage["why"],
    ]
