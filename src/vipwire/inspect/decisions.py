"""`vipwire plan`: the decisions for every Service, in sentences."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text
from rich.tree import Tree

from vipwire.inspect.command.show import colour_word, format_count, format_endpoint_document, format_service
from vipwire.inspect.node.family_view import FamilyView
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.document import Document, build_service_document, format_share
from vipwire.model.net import format_address
from vipwire.model.service import Service
from vipwire.plan.node import PodBridge, PodInterfaces, PodPrefixes
from vipwire.terminal.columns import Prose

_SOURCE = {
    "never": "the endpoint sees the client's address",
    "unless-pod": "the endpoint sees the client's address if that is a Pod, else the node's",
    "always": "the endpoint sees the node's address",
}
_MANY = 16
_BEHIND_THE_FAMILY = len("  IPv4: ")


def plan_document(situation: Situation, services: list[Service]) -> Document:
    documents = [build_service_document(situation, service) for service in services]
    for document in documents:
        document.pop("kernel")
    return {
        "kind": "Plan",
        "node": situation.node_name,
        "families": [_build_node_document(side) for side in situation.sides],
        "services": documents,
    }


def _build_node_document(side: FamilyView) -> Document:
    node = side.node
    return {
        "family": side.family.value,
        "address": None if node.address is None else format_address(node.address),
        "zone": node.zone,
        "podTraffic": _describe_pods(side),
        "masqueradeAll": node.masquerade_all,
        "masqueradeMark": f"{node.masquerade_mark:#x}",
        "nodePortAddresses": [str(prefix) for prefix in node.node_port_addresses],
        "serviceCIDRs": [str(prefix) for prefix in node.service_cidrs],
        "externalIPs": node.external_ips,
    }


def _describe_pods(side: FamilyView) -> str:
    match side.node.pod_traffic:
        case PodPrefixes(prefixes):
            return f"from {', '.join(map(str, prefixes))}"
        case PodBridge(interface):
            return f"arriving on the bridge {interface}"
        case PodInterfaces(prefix):
            return f"arriving on interfaces {prefix}*"
    return ""


def plan_view(document: Document) -> RenderableType:
    parts: list[RenderableType] = [Text(f"node {document['node']}", style="bold")]
    families = (Text(f"  {family['family']}: {_describe_node(family)}") for family in document["families"])
    parts.extend(Prose(words, _BEHIND_THE_FAMILY) for words in families)
    for service in document["services"]:
        parts.append(Text())
        parts.append(_build_tree(service))
    return Group(*parts)


def _describe_node(family: Document) -> str:
    words = [f"address {family['address'] or 'none'}"]
    if family["podTraffic"]:
        words.append(f"traffic of Pods: {family['podTraffic']}")
    else:
        words.append("vipwire cannot recognise traffic of Pods (no --cluster-cidr)")
    if family["masqueradeAll"]:
        words.append("vipwire masquerades all traffic to ClusterIPs")
    served = ", ".join(family["nodePortAddresses"])
    words.append(f"node ports answer at {served or 'no address'}")
    if family["serviceCIDRs"]:
        words.append(f"ClusterIPs come from {', '.join(family['serviceCIDRs'])}")
    return "; ".join(words)


def _build_tree(service: Document) -> Tree:
    title = Text(format_service(service), style="bold")
    tree = Tree(Text.assemble(title, f"  {service['type']}, ", ", ".join(_describe_policies(service))))
    for port in service["ports"]:
        name = f"port {port['name'] + ' ' if port['name'] else ''}{port['port']}/{port['protocol']}"
        branch = tree.add(Text(name, style="cyan"))
        for frontend in (*port["frontends"], *port.get("ranges", ())):
            leaf = branch.add(_describe_frontend(frontend))
            for sentence in _describe_details(frontend):
                leaf.add(sentence)
        ends = branch.add(Text(f"endpoints ({len(port['endpoints'])})"))
        for usage in port["endpoints"][:_MANY]:
            used = "used" if usage["forPolicies"] else "not used"
            ends.add(
                Text.assemble(format_endpoint_document(usage), f" on {usage['node'] or '?'}: {used}: {usage['why']}")
            )
        if len(port["endpoints"]) > _MANY:
            ends.add(Text(f"… {len(port['endpoints']) - _MANY} more (-o json has all)", style="dim"))
    for lost in service["lost"]:
        tree.add(Text(f"{lost['frontend']} belongs to {lost['to']}, which owns the address or is older", "yellow"))
    return tree


def _describe_policies(service: Document) -> Iterator[str]:
    yield f"internal policy {service['internalTrafficPolicy']}"
    if service["type"] != "ClusterIP":
        yield f"external policy {service['externalTrafficPolicy']}"
    if service["sessionAffinitySeconds"] is not None:
        yield f"a client stays with its endpoint for {service['sessionAffinitySeconds']} s"


def _describe_frontend(frontend: Document) -> Text:
    if frontend["address"] is None:
        place = f"{frontend['family']} node port {frontend['port']}"
    else:
        place = f"{frontend['kind']} {format_endpoint_document(frontend)}"
    return Text.assemble(f"{place}: ", _describe_action(frontend))


def _describe_action(action: Document) -> Text:
    if action["action"] != "forward":
        return colour_word(f"{action['action']}: {action['reason']}", action["action"])
    ends = action["endpoints"]
    each = ""
    if len(ends) > 1:
        least, most = (format_share(bound(end["share"] for end in ends)) for bound in (min, max))
        each = f", {least} each" if least == most else f", {least} to {most} each"
        each += f" ({action['algorithm']})" if action["algorithm"] != "random" else ""
    local = sum(end["local"] for end in ends)
    return Text(f"to {format_count(len(ends), 'endpoint')}{each} ({local} here)", style="green")


def _describe_details(frontend: Document) -> Iterator[Text]:
    if frontend["action"] == "forward":
        yield Text(_SOURCE[frontend["masquerade"]])
    elif frontend["action"] == "drop":
        yield Text("vipwire drops, and does not reject, because another node can answer")
    if "fromThisNode" in frontend:
        inner = frontend["fromThisNode"]
        yield Text.assemble(
            "clients on this node instead: ", _describe_action(inner), f"; {_SOURCE[inner['masquerade']]}"
        )
    if "allowedSources" in frontend:
        yield Text(f"only from {', '.join(frontend['allowedSources'])}; others are dropped")
