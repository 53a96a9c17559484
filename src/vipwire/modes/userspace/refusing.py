"""Writes the rules that reject or drop what is not served. Pure.

    frontend     those who may come      all others
    forwards     translated by now       dropped
    refuses      refused                 dropped
    drops        dropped                 dropped

An address of this node may be a Service's, and serve other Services' node ports: one that nobody answers for leaves
them alone. So there, and only there, refusals stand behind the node ports that are served.
"""

from collections.abc import Iterator

from vipwire.modes.userspace import names
from vipwire.modes.userspace.entrance import Entrance
from vipwire.modes.userspace.names import FILTER, Rule
from vipwire.modes.userspace.rule_words import NO_SUCH_PORT, OTHER_SOURCES, packet, sources
from vipwire.modes.xtables.words import comment, to
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import Drop, Forward, Frontend, Reject, ServicePlan

_SCTP = "SCTP is not relayed"


def denials(node: NodePlan, plan: ServicePlan, entrance: Entrance) -> Iterator[Rule]:
    """Write what becomes of those who were not translated, or not to be accepted."""
    frontend = entrance.frontend
    dropping, rejecting = _chains(node, plan, frontend)
    limited = frontend.allowed_sources is not None
    match frontend.action:
        case Reject(reason) if limited:
            for source in sources(frontend.allowed_sources):
                yield _rule(entrance, dropping, reason.value, f"-j {names.REFUSE}", source)._replace(first=True)
        case Reject(reason):
            yield _rule(entrance, rejecting, reason.value, f"-j {names.REFUSE}")
        case Drop(reason):
            yield _rule(entrance, dropping, reason.value, "-j DROP")
    if limited and not isinstance(frontend.action, Drop):
        yield _rule(entrance, dropping, f"{OTHER_SOURCES} to the {frontend.kind.value}", "-j DROP")


def sctp_refusal(entrance: Entrance) -> Rule:
    """Refuse what no relay can carry."""
    chain = names.NODEPORT_FILTER if entrance.frontend.key.address is None else names.PORTALS_REJECT
    return _rule(entrance, chain, _SCTP, f"-j {names.REFUSE}")


def other_ports(plan: ServicePlan) -> Iterator[Rule]:
    """Refuse the ports of ClusterIPs that no frontend names."""
    for address in plan.cluster_ips:
        note = comment(f"{plan.name} {NO_SUCH_PORT}")
        yield Rule(FILTER, names.PORTALS_REJECT, f"{to(address)} {note} -j {names.REFUSE}")


def serving(frontend: Frontend) -> Rule | None:
    """Keep refusals at addresses of this node away from a node port that is served; None for other frontends."""
    if frontend.key.address is not None or not (frontend.short_circuit or isinstance(frontend.action, Forward)):
        return None
    words = packet("", None, frontend.key.protocol, frontend.key.port, str(frontend.port_name))
    return Rule(FILTER, names.PORTALS_OWN, f"{words} -j RETURN", first=True)


def _chains(node: NodePlan, plan: ServicePlan, frontend: Frontend) -> tuple[str, str]:
    """Choose the chains for what is dropped and for what is refused."""
    address = frontend.key.address
    if address is None:
        return names.NODEPORT_FILTER, names.NODEPORT_FILTER
    serves = any(address in prefix for prefix in node.node_port_addresses)
    if address in plan.own_addresses and serves and isinstance(frontend.action, Reject):
        return names.PORTALS_OWN_DENY, names.PORTALS_OWN_DENY
    return names.PORTALS_DROP, names.PORTALS_REJECT


def _rule(entrance: Entrance, chain: str, why: str, verdict: str, source: str = "") -> Rule:
    key, port_name = entrance.frontend.key, entrance.frontend.port_name
    words = packet(source, key.address, key.protocol, entrance.dport, f"{port_name} {why}")
    return Rule(FILTER, chain, f"{words} {verdict}")
