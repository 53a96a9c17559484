"""The plan's reasons for the way of a packet, in sentences."""

import difflib
from collections.abc import Iterable, Mapping, Sequence

from vipwire.inspect.command.show import join_words
from vipwire.inspect.explain.explanation import Explanation, find_bypassed, is_health_check, list_health_checks
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.status.usage import DrainedTarget, explain_ejected
from vipwire.model.net import Address, Protocol, family_of, format_address, format_endpoint
from vipwire.model.spread import Algorithm
from vipwire.plan.annotations import read_wishes
from vipwire.plan.plan import Forward, FrontendKey, Masquerade
from vipwire.plan.resolve import Answered, Dropped, Packet, Rejected, is_from_pod, serves_node_ports
from vipwire.reconcile.explainer import BY_ADDRESS, BY_ADDRESS_AND_PORT, IN_TURN, Walk
from vipwire.reconcile.steps import End

_MANY = 5


def list_reasons(explanation: Explanation) -> Iterable[str]:
    frontend, outcome, packet = explanation.frontend, explanation.outcome, explanation.packet
    if frontend is not None:
        yield f"{frontend.key} is the {frontend.kind.value} of {frontend.port_name}"
    match outcome:
        case Dropped(why) | Rejected(why):
            yield why
            if isinstance(outcome, Dropped) and frontend is not None and "no local" in why:
                yield "vipwire drops, and does not reject, because another node can answer"
        case Answered():
            yield from _explain_answer(explanation, outcome)
        case _ if not explanation.health_checks:
            yield _explain_untouched(explanation)
    yield from _explain_health_checks(explanation)
    if frontend is None and not explanation.health_checks:
        yield from _suggest_causes(explanation.situation, packet)
    yield from _describe_drained(explanation.drained)
    for out in explanation.ejected[:_MANY]:
        yield f"{out.target} is {explain_ejected(out.until, spared=out.spared)}"


def _explain_untouched(explanation: Explanation) -> str:
    packet, walk = explanation.packet, explanation.walk
    strays = walk is not None and walk.refuses_strays
    what = (
        "the kernel refuses the packet, because this mode puts the address on the node"
        if strays
        else "the kernel routes the packet unchanged"
    )
    nor = ", and no health check of a Service" if packet.to_node and packet.protocol is Protocol.TCP else ""
    return f"no Service is at {_format_destination(packet)}{nor}: {what}"


def _explain_health_checks(explanation: Explanation) -> Iterable[str]:
    place, checks = _format_destination(explanation.packet), explanation.health_checks
    for check in checks:
        status = check.answer(proxy_healthy=True).status
        ready = f"{check.local_endpoints or 'no'} ready endpoint{'s' * (check.local_endpoints != 1)}"
        yield f"{place} is the health check of {check.service}: vipwire itself answers, HTTP {status}, {ready} here"
    if len(checks) > 1:
        yield "several Services have this health check node port: vipwire answers for the newest"


def _format_destination(packet: Packet) -> str:
    return f"{format_endpoint(packet.destination, packet.port)}/{packet.protocol.label}"


def _describe_drained(found: Sequence[DrainedTarget]) -> Iterable[str]:
    for left in found[:_MANY]:
        yield f"{left.target} gets no new connections ({left.why})"
    if len(found) > _MANY:
        yield f"{len(found) - _MANY} more endpoints are drained"


def _describe_choice(explanation: Explanation, action: Forward) -> str:
    walk = _find_answering_walk(explanation)
    if len(action.pool) == 1:
        return "every new connection goes to the only endpoint"
    words = (walk.choice if walk is not None else "") or _ASKED[action.spread.algorithm]
    shares = list(walk.shares.values()) if walk is not None and walk.shares else []
    weighted = len(set(shares)) > 1 if len(shares) > 1 else bool(action.spread.weights)
    return words + (", by weight" if weighted else "")


def _find_answering_walk(explanation: Explanation) -> Walk | None:
    walk = explanation.walk
    return walk if walk is not None and walk.end is End.ANSWERED else None


_ASKED = {
    Algorithm.RANDOM: "each new connection goes to an endpoint, by this mode's choice",
    Algorithm.ROUND_ROBIN: IN_TURN,
    Algorithm.SOURCE_HASH: BY_ADDRESS,
    Algorithm.MAGLEV: BY_ADDRESS_AND_PORT,
}


def _explain_answer(explanation: Explanation, outcome: Answered) -> Iterable[str]:
    frontend, packet = outcome.frontend, explanation.packet
    pod = is_from_pod(explanation.side.node, packet)
    action = explanation.action
    if frontend.short_circuit is not None and (pod or packet.from_node):
        who = "a Pod" if pod else "this node itself"
        yield f"the client is {who}, to which the external policy Local does not apply: every endpoint may answer"
    elif frontend.short_circuit is not None:
        yield "the external policy is Local: only endpoints on this node answer, and they see the client's address"
    if frontend.allowed_sources is not None:
        yield "the source is in loadBalancerSourceRanges"
    assert action is not None  # noqa: S101 - it is answered
    yield _describe_choice(explanation, action)
    if explanation.service is not None and (seconds := read_wishes(explanation.service[0]).slow_start):
        yield f"a new endpoint gets less than its share for {seconds} s (slow start)"
    if explanation.service is not None and (row := read_wishes(explanation.service[0]).eject_after):
        times = f"{row} connections in a row" if row > 1 else "a connection"
        yield f"vipwire ejects an endpoint that does not answer {times}"
    walk = _find_answering_walk(explanation)
    if action.affinity_seconds is not None and walk is not None and walk.affinity:
        yield f"the Service has session affinity, but {walk.affinity}"
    elif action.affinity_seconds is not None:
        shared = ", at all ports of the Service" if action.shared_affinity else ""
        yield f"session affinity: the client keeps its endpoint for {action.affinity_seconds} s{shared}"
    if explanation.walk is not None and explanation.walk.relayed:
        yield "relayed: endpoints see this node's address, not the client's"
        return
    yield _explain_masquerade(explanation, action, outcome, pod=pod)
    if find_bypassed(explanation):
        yield (
            "endpoints on other nodes reply to this client directly: the client gets the reply only if it "
            "passes this node"
        )


def _explain_masquerade(explanation: Explanation, action: Forward, outcome: Answered, *, pod: bool) -> str:
    if action.masquerade is Masquerade.ALWAYS:
        if explanation.side.node.masquerade_all and outcome.frontend.kind.value == "cluster IP":
            return "masqueraded: --masquerade-all is set"
        return "masqueraded, so that the reply passes this node"
    if action.masquerade is Masquerade.UNLESS_POD and not pod:
        return "masqueraded, because the client is not a Pod"
    if outcome.masqueraded:
        return "not masqueraded, except for a client that is its own endpoint (hairpin)"
    return "not masqueraded: the endpoint sees the client's own address"


def _suggest_causes(situation: Situation, packet: Packet) -> Iterable[str]:
    side = situation.find_view(family_of(packet.destination))
    if side is None:
        return
    keys, checks = side.plan.frontends, dict(list_health_checks(situation))
    here = [_format_port(key) for key in keys if key.address == packet.destination]
    if packet.to_node and serves_node_ports(side.node, packet.destination):
        here += [_format_port(key) for key in keys if key.address is None]
    if is_health_check(situation, packet):
        here += [f"{port}/tcp (health check)" for port in checks]
    if here:
        yield f"ports at this address: {join_words(sorted(set(here)), 8)}"
        return
    owners = {key.address: str(frontend.port_name) for key, frontend in keys.items() if key.address is not None}
    if near := _find_similar_addresses(packet.destination, owners):
        yield f"similar addresses: {', '.join(near)}"
    if packet.to_node:
        return
    elsewhere = f"but {format_address(packet.destination)} is not an address of this node"
    if packet.port in {key.port for key in keys if key.address is None}:
        yield f"{packet.port} is a node port, {elsewhere}"
    if check := checks.get(packet.port):
        yield f"{packet.port} is the health check of {check.service}, {elsewhere}"


def _format_port(key: FrontendKey) -> str:
    return f"{key.port}/{key.protocol.label}" + (" (node port)" if key.address is None else "")


def _find_similar_addresses(address: Address, owners: Mapping[Address, str]) -> list[str]:
    text = format_address(address)
    known = {format_address(each): owner for each, owner in owners.items() if len(each) == len(address)}
    close = difflib.get_close_matches(text, known, 3, 0.7)
    return [f"{each} ({known[each]})" for each in close]
