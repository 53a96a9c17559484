"""`vipwire status`: the tables of a status document."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from vipwire.inspect.command.show import (
    build_table,
    colour_word,
    format_age,
    format_count,
    format_endpoint_document,
    format_port,
    format_service,
    format_size,
)
from vipwire.inspect.status.document import Document, describe_state, format_share
from vipwire.proxy_daemon.start.record import ProxyState
from vipwire.terminal.columns import Column


def build_status_view(document: Document, *, wide: bool, details: bool) -> RenderableType:
    """Lay out a status document; with `details`, list all endpoints of the named Services."""
    parts: list[RenderableType] = [_build_head(document), Text()]
    if document["services"]:
        parts.append(_build_full_services_table(document) if wide else _build_services_table(document))
    elif not any(each["since"] is None for each in document.get("silent", ())):
        parts.append(Text("There are no Services with a ClusterIP."))
    if details:
        parts.extend(_build_details(document))
    parts.extend(_show_ejected(document))
    if document["refusals"] and (wide or details):
        parts.extend((Text("\nRefused", style="bold"), _show_refused(document)))
    elif any(each["packets"] for each in document["refusals"]):
        parts.append(Text(f"\nrefused: {_describe_refused(document)}", style="yellow"))
    for problem in document["problems"]:
        text = f"{problem['kind']} {problem['object']}: {problem['field']}: {problem['message']}"
        parts.append(Text(f"problem: {text}", style="yellow"))
    return Group(*parts)


def _show_ejected(document: Document) -> Iterator[Text]:
    for service in document["services"]:
        for port in service["ports"]:
            for usage in (each for each in port["endpoints"] if "ejectedUntil" in each):
                said = f"{format_endpoint_document(usage)} of {format_port(service, port)}: {usage['why']}"
                yield Text(f"\n{said}", style="yellow")


def _build_head(document: Document) -> Text:
    text = Text.assemble(("node ", "dim"), document["node"], ("  mode ", "dim"), document["mode"])
    if "proxy" in document:
        text.append("\n").append_text(describe_proxy(document["proxy"]))
    for family in document["families"]:
        text.append(f"\n{family['family']}: ", style="dim")
        text.append(colour_word(family["state"]))
        text.append(_describe_family(family))
    for each in document.get("standing", ()):
        text.append(f"\n{each['what']}: ", style="dim")
        text.append(each["said"], style="yellow" if each["remedy"] or each["bad"] else "")
        text.append(f" ({each['remedy']})" if each["remedy"] else "")
    for each in document["earlier"]:
        text.append("\nearlier: ", style="dim")
        text.append(each["said"], style="yellow" if "translate" in each["may"] else "")
    return text


def _describe_family(family: Document) -> str:
    if family.get("reason"):
        held = "" if family["observedObjects"] is None else f"{family['observedObjects']} objects; "
        return f" ({held}{family['reason']})"
    if family["state"] == "not programmed":
        return f" ({family['wantedObjects']} objects to write)"
    counts = [f"{family[what]} {what}" for what in ("missing", "different", "surplus") if family[what]]
    return f" ({family['observedObjects']} objects{''.join(f', {count}' for count in counts)})"


_NOBODY: Final = "no proxy updates the kernel"
_SHORT: Final = (
    Column("service"),
    Column("type", rank=3),
    Column("address"),
    Column("endpoints"),
    Column("here", rank=4),
    Column("connections", rank=2),
    Column("policy", rank=1),
    Column("kernel"),
)
_WIDE: Final = ("service", "type", "reached at", "endpoints", "share", "connections", "policy", "kernel")
_MORE: Final = ("traffic", "nodes", "annotations")


def _build_services_table(document: Document) -> RenderableType:
    rows: list[list[str | Text]] = []
    for service in document["services"]:
        last: list[str | Text] = [", ".join(describe_policies(service)), _describe_kernel(service)]
        if not service["ports"]:
            name = format_service(service)
            rows.append([name, service["type"], "-", colour_word("no usable port", "warning"), "-", "-", *last])
        for port in service["ports"]:
            ends = [format_port(service, port), service["type"], _format_addresses(port), *_format_numbers(port)]
            rows.append([*ends, *last])
    return build_table(_SHORT, rows)


def _format_addresses(port: Document) -> str:
    places = [_format_frontend(each) for each in (*port["frontends"], *port.get("ranges", ()))]
    return "-" if not places else places[0] + (f" +{len(places) - 1}" if len(places) > 1 else "")


def _format_numbers(port: Document) -> list[str | Text]:
    first = next(iter(port["frontends"]), None)
    counts = port["counts"]
    connections = "-" if counts is None or counts["connections"] is None else str(counts["connections"])
    used = [each for each in port["endpoints"] if each["forPolicies"]]
    number = f"{count_pods(used)}/{count_pods(port['endpoints'])}"
    if first is not None and first["action"] != "forward":
        return [colour_word(f"{number} {first['action']}", first["action"]), "-", connections]
    return [number, str(count_pods(each for each in used if each["local"])), connections]


def count_pods(endpoints: Iterable[Document]) -> int:
    """Count Pods: one Pod has an address of each family."""
    families: dict[str, set[tuple[str, int]]] = {}
    for each in endpoints:
        families.setdefault(each["family"], set()).add((each["address"], each["port"]))
    return max(map(len, families.values()), default=0)


def _build_full_services_table(document: Document) -> RenderableType:
    rows: list[list[str | Text]] = []
    for service in document["services"]:
        last: list[str | Text] = ["\n".join(describe_policies(service)), _describe_kernel(service)]
        annotations = _join_column([f"{k}={v}" for k, v in service["annotations"].items()])
        if not service["ports"]:
            name, nothing = format_service(service), ["-", "-", "-"]
            unusable = colour_word("no usable port", "warning")
            rows.append([name, service["type"], unusable, *nothing, *last, "-", "-", annotations])
        for port in service["ports"]:
            nodes = sorted({each["node"] or "-" for each in port["endpoints"]})
            rows.append(
                [*_build_row(service, port), *last, _format_traffic(port["counts"]), _join_column(nodes), annotations]
            )
    return build_table([*_WIDE, *_MORE], rows, whole=True)


def _build_row(service: Document, port: Document) -> list[str | Text]:
    ends = _format_endpoints(port)
    counts = port["counts"]
    counted = counts is not None and counts["connections"] is not None
    return [
        format_port(service, port),
        service["type"],
        _join_column([_format_frontend(each) for each in (*port["frontends"], *port.get("ranges", ()))]),
        _join_column([end for end, _, _ in ends]),
        _join_column([share for _, share, _ in ends]),
        "\n".join(number for _, _, number in ends) or str(counts["connections"]) if counted else "-",
    ]


def _join_column(items: Sequence[str]) -> str:
    return "\n".join(items) or "-"


def _format_frontend(frontend: Document) -> str:
    if frontend["address"] is None:
        return f"node port {frontend['port']}/{frontend['protocol']} {frontend['family']}{_format_sockets(frontend)}"
    kind = "" if frontend["kind"] == "cluster IP" else f" ({frontend['kind']})"
    return f"{format_endpoint_document(frontend)}/{frontend['protocol']}{kind}{_format_sockets(frontend)}"


def _format_sockets(frontend: Document) -> str:
    """Show the sockets where clients connect, in a mode that listens and has no rules."""
    return f" at {', '.join(frontend['listening'])}" if frontend.get("listening") else ""


def _format_traffic(counts: Document | None) -> str:
    if counts is None or counts["bytes"] is None:
        return "-"
    words = [f"in {format_size(counts['bytes'])}"]
    if counts["replyBytes"] is not None:
        words.append(f"out {format_size(counts['replyBytes'])}")
    return "\n".join(words)


def _describe_refused(document: Document) -> str:
    totals: dict[str, int] = {}
    for each in document["refusals"]:
        totals[each["reason"]] = totals.get(each["reason"], 0) + each["packets"]
    return ", ".join(f"{format_count(number, 'packet')} by {reason}" for reason, number in totals.items() if number)


def _show_refused(document: Document) -> RenderableType:
    rows = [
        [
            each["reason"],
            colour_word(each["action"]),
            f"{each['service']}:{each['port']}" if each["port"] else each["service"] or "-",
            str(each["packets"]),
        ]
        for each in document["refusals"]
    ]
    return build_table(["reason", "action", "service", "packets"], rows)


def _format_endpoints(port: Document) -> list[tuple[str, str, str]]:
    """List each endpoint, its share of the connections to its family's first frontend, and its counts."""
    counted = {format_endpoint_document(each): each["counts"] for each in port["endpoints"]}
    ends: list[tuple[str, str, str]] = []
    for family in dict.fromkeys(each["family"] for each in port["frontends"]):
        first = next(each for each in port["frontends"] if each["family"] == family)
        if first["action"] != "forward":
            ends.append((f"none: {first['action']}", first["reason"].partition(" ")[2], ""))
            continue
        for target in first["endpoints"]:
            here = " (here)" if target["local"] else ""
            name = format_endpoint_document(target)
            number = (counted.get(name) or {}).get("connections")
            ends.append((f"{name}{here}", format_share(target["share"]), "-" if number is None else str(number)))
    return ends


def describe_policies(service: Document) -> Iterator[str]:
    """Yield the Service's policies that are not the default; "default" if all are."""
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


def _describe_kernel(service: Document) -> Text:
    text = Text()
    words = [(each["family"], describe_state(each), each["state"]) for each in service["kernel"]]
    if len({said for _, said, _ in words}) == 1:
        words = [("", *words[0][1:])]
    for family, said, state in words:
        text.append("\n" if text else "")
        text.append(f"{family} " if family else "")
        text.append(colour_word(said, state))
    for lost in service["lost"]:
        text.append(f"\nlost {lost['frontend']} to {lost['to']}", style="yellow")
    return text or Text("-")


_ENDPOINTS: Final = (
    Column("endpoint"),
    Column("node", rank=3),
    Column("share"),
    Column("conditions", rank=2),
    Column("used by policy", rank=5),
    Column("connections", rank=1),
    Column("traffic", rank=4),
    Column("why", prose=True),
)


def _build_details(document: Document) -> Iterator[RenderableType]:
    for service in document["services"]:
        for port in service["ports"]:
            name = f"{format_service(service)}:{port['name'] or port['port']}"
            yield Text(f"\nAddresses of {name}", style="bold")
            yield from (Text(f"  {_format_frontend(each)}") for each in (*port["frontends"], *port.get("ranges", ())))
            shares = {end.removesuffix(" (here)"): share for end, share, _ in _format_endpoints(port)}
            rows = [
                _build_usage_row(usage, shares.get(format_endpoint_document(usage), "-"))
                for usage in port["endpoints"]
            ]
            yield Text(f"\nEndpoints of {name}", style="bold")
            if rows:
                yield build_table(_ENDPOINTS, rows)
            else:
                yield Text("none: no EndpointSlice has an endpoint for this port")
        if check := service.get("healthCheckNodePort"):
            here = f"{format_count(check['localEndpoints'], 'endpoint')} here"
            yield Text(f"\nhealth check on node port {check['port']}: {here}")


def _format_usage(usage: dict[str, Any]) -> str:
    """Write an endpoint's connections, total and open, as far as the mode counts them."""
    counts, now = usage["counts"], usage["open"]
    number = "-" if counts is None or counts["connections"] is None else str(counts["connections"])
    return number if now is None else f"{number} ({now['active']} open)"


def _build_usage_row(usage: dict[str, Any], share: str) -> list[str | Text]:
    conditions = [word for word in ("ready", "serving", "terminating") if usage[word]]
    used = "/".join(usage["forPolicies"])
    return [
        format_endpoint_document(usage),
        (usage["node"] or "-") + (" (here)" if usage["local"] else ""),
        share,
        ", ".join(conditions) or "not ready",
        colour_word(used or "none", "ok" if used else "warning"),
        _format_usage(usage),
        _format_traffic(usage["counts"]),
        usage["why"],
    ]


def describe_proxy(document: Document, now: float | None = None) -> Text:
    """Write one line about the proxy, and one for each of its problems."""
    now = time.time() if now is None else now
    text = Text("proxy: ", style="dim")
    state = document["state"]
    if state == ProxyState.NONE.value:
        text.append_text(colour_word("none runs here", "warning"))
        return text.append(f"; {_NOBODY}")
    if state == ProxyState.RUNNING.value:
        text.append_text(colour_word("runs", "ok"))
        synced = "".join(
            f"; {family} synced {format_age(when, now)}" if when else f"; {family} not yet synced"
            for family, when in document["lastSync"].items()
        )
        text.append(f" since {document['started']} (pid {document['pid']}, vipwire {document['version']}){synced}")
    else:
        word = "ended" if state == ProxyState.ENDED.value else "was killed or has crashed"
        text.append_text(colour_word(word, "bad"))
        when = document["ended"] or document["seen"]
        reason = f" ({document['reason']})" if document["reason"] else ""
        last = "" if state == ProxyState.ENDED.value else ", last seen"
        text.append(f"{reason}{last} {format_age(when, now)}; {_NOBODY}")
    for resource, error in document["failing"].items():
        text.append_text(Text(f"\nproxy: {resource}: {error}", style="yellow"))
    if document["otherFlags"]:
        flags = " ".join(document["otherFlags"])
        text.append_text(Text(f"\nproxy: runs with {flags}; this command runs without", style="yellow"))
    return text
