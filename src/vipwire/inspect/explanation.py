"""`vipwire explain`: what becomes of a packet, as the plan decides it and as the kernel's objects do it.

resolve   the plan's answer                  ┐
walk      what the observed objects would do ├▶ one document; where the two differ, that is its headline
flows     what connection tracking holds     ┘
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from vipwire.inspect.document import Document, share_text, shares
from vipwire.inspect.packet import hints
from vipwire.inspect.side import Side
from vipwire.inspect.situation import Situation
from vipwire.inspect.usage import Left, drained
from vipwire.model.net import Address, family_of, format_address, format_endpoint
from vipwire.model.service import Service, ServicePort
from vipwire.netlink.conntrack import Flow
from vipwire.plan.annotations import wishes
from vipwire.plan.plan import Forward, Frontend, Masquerade, Target
from vipwire.plan.resolve import Answered, Dropped, Outcome, Packet, Rejected, from_pod, resolve
from vipwire.plan.spread import Algorithm
from vipwire.reconcile.explainer import End, Walk

_Shares = Mapping[tuple[Address, int] | None, Fraction]
_NEARLY = Fraction(1, 100)
_MANY = 5

SourceTowards = Callable[[Address], Address | None]
"""Tells from which address this node sends to another."""

_ENDS = {Answered: End.ANSWERED, Dropped: End.DROPPED, Rejected: End.REJECTED}


@dataclass(frozen=True)
class Explanation:
    """Everything that is known about a packet. `walk` is None where the kernel or the mode cannot tell."""

    situation: Situation
    side: Side
    packet: Packet
    outcome: Outcome
    walk: Walk | None
    source_towards: SourceTowards
    flows: tuple[Flow, ...] | None = None

    @property
    def planned(self) -> End:
        """The plan's answer in a word."""
        return _ENDS.get(type(self.outcome), End.UNTOUCHED)

    @property
    def frontend(self) -> Frontend | None:
        """The frontend that the packet meets."""
        return getattr(self.outcome, "frontend", None)

    @property
    def action(self) -> Forward | None:
        """What the plan does with the packet if it is answered."""
        if not isinstance(self.outcome, Answered):
            return None
        frontend = self.outcome.frontend
        here = self.packet.from_node or from_pod(self.side.node, self.packet)
        chosen = frontend.short_circuit if frontend.short_circuit is not None and here else frontend.action
        return chosen if isinstance(chosen, Forward) else None

    @cached_property
    def service(self) -> tuple[Service, ServicePort] | None:
        """The Service whose frontend the packet meets, and its port."""
        if self.frontend is None:
            return None
        name = self.frontend.port_name
        service = self.situation.store.services.get(name.service)
        ports = service.ports if service is not None else ()
        return next(((service, port) for port in ports if service and service.port_name(port) == name), None)

    @cached_property
    def drained(self) -> tuple[Left, ...]:
        """The endpoints that are there and get no new connections."""
        return () if self.service is None else tuple(drained(self.situation.store, self.side, *self.service))

    @property
    def pool(self) -> dict[Target, Fraction]:
        """The plan's targets with their shares of this client's new connections.

        Where the client's address decides, the kernel's rules tell which target that is.
        """
        if self.action is None:
            return {}
        pool = shares(self.action)
        if self.by_address and self.walk is not None and self.walk.shares:
            held = self.walk.shares
            chosen = {each: held[each.address, each.port] for each in pool if (each.address, each.port) in held}
            return chosen or pool
        return pool

    @property
    def by_address(self) -> bool:
        """Whether the client's address alone decides which target it gets."""
        return self.action is not None and self.action.spread.algorithm is Algorithm.SOURCE_HASH


def bypassed(explanation: Explanation) -> frozenset[Target]:
    """Name the targets that answer past this node: elsewhere, to a client elsewhere, whose address they see.

    Nobody translates such an answer back, so that the client hears from an address that it has not asked; unless the
    network leads the answer through this node all the same.
    """
    packet, outcome = explanation.packet, explanation.outcome
    node = explanation.situation.store.nodes.get(explanation.situation.node_name)
    if node is not None and node.pod_cidrs:
        here = any(packet.source in prefix for prefix in node.pod_cidrs)
    else:
        here = from_pod(explanation.side.node, packet)
    if here or packet.from_node or not isinstance(outcome, Answered):
        return frozenset()
    return frozenset(
        target for target in explanation.pool if not target.local and target.address not in outcome.masqueraded
    )


def explain(situation: Situation, packet: Packet, source_towards: SourceTowards) -> Explanation | None:
    """Explain a packet; None if this machine does not have its family."""
    side = situation.side(family_of(packet.destination))
    if side is None:
        return None
    outcome = resolve(side.plan, packet)
    walk = None
    if side.explainer is not None and side.observed is not None and not side.remains:
        walk = side.explainer.walk(side.observed, side.wanted, packet, situation.own_addresses)
    return Explanation(situation, side, packet, outcome, walk, source_towards)


def agreement(explanation: Explanation) -> tuple[bool | None, str]:
    """Compare plan and kernel: whether they agree (None if unknown), and in what they differ."""
    walk = explanation.walk
    if walk is None:
        reason = explanation.side.obstacle or explanation.side.remains or "this mode does not show a packet's way"
        return None, reason
    if walk.end is End.UNKNOWN:
        return None, "somebody has changed rules on the way, and what they do now cannot be told"
    if walk.refuses_strays and explanation.planned is End.UNTOUCHED:
        return True, ""
    if walk.end is not explanation.planned:
        return False, f"the plan says {explanation.planned.value}, the kernel would leave it {walk.end.value}"
    if walk.end is not End.ANSWERED:
        return True, ""
    return _same_answer(explanation, walk)


def _same_answer(explanation: Explanation, walk: Walk) -> tuple[bool, str]:
    planned: dict[tuple[Address, int], Fraction] = {
        (target.address, target.port): share for target, share in explanation.pool.items()
    }
    if not _same_shares(planned, walk.shares or {}):
        return False, "; ".join(_share_differences(planned, walk.shares or {}))
    assert isinstance(explanation.outcome, Answered)  # noqa: S101 - it is what `planned` says
    reached = explanation.outcome.masqueraded & {target.address for target in explanation.pool}
    if walk.masqueraded != reached and not walk.relayed and not _delivered_here(explanation):
        return False, "the kernel masquerades for other endpoints than the plan says"
    return True, ""


def _delivered_here(explanation: Explanation) -> bool:
    """Tell whether a target is this node itself: what is delivered here passes no POSTROUTING."""
    return any(target.address in explanation.situation.own_addresses for target in explanation.pool)


def _same_shares(planned: Mapping[tuple[Address, int], Fraction], held: _Shares) -> bool:
    """Compare shares. Slots are whole: Maglev's table, and weights that do not fit it, are met but nearly."""
    wanted = {target for target, share in planned.items() if share}
    return wanted == held.keys() and all(abs(held[target] - planned[target]) <= _NEARLY for target in wanted)


def _share_differences(planned: Mapping[tuple[Address, int], Fraction], held: _Shares) -> Iterable[str]:
    """Say in what two distributions differ."""
    if None in held:
        yield f"{share_text(held[None])} of new connections go to nobody"
    if left_out := [format_endpoint(*target) for target, share in planned.items() if share and target not in held]:
        yield f"nothing goes to {_listed(left_out)}"
    extra = [target for target in held if target is not None and target not in planned]
    if extra:
        yield f"some go to {_listed([format_endpoint(*target) for target in extra])}, which the plan does not have"
    if not (left_out or extra or None in held):
        yield "the shares of the endpoints are others"


def _listed(words: list[str]) -> str:
    return ", ".join(words[:5]) + (f" and {len(words) - 5} more" if len(words) > 5 else "")


def explain_document(explanation: Explanation) -> Document:
    """Make the document of an explanation."""
    packet = explanation.packet
    agrees, difference = agreement(explanation)
    document: Document = {
        "kind": "Explanation",
        "node": explanation.situation.node_name,
        "mode": explanation.situation.config.proxy_mode.value,
        "packet": {
            "from": format_address(packet.source),
            "to": format_endpoint(packet.destination, packet.port),
            "protocol": packet.protocol.label,
            "interface": packet.interface,
            "fromThisNode": packet.from_node,
            "fromPod": from_pod(explanation.side.node, packet),
            "toThisNode": packet.to_node,
        },
        "outcome": explanation.planned.value,
        "why": list(reasons(explanation)),
        "service": str(explanation.frontend.port_name) if explanation.frontend else None,
        "frontend": explanation.frontend.kind.value if explanation.frontend else None,
        "endpoints": [_endpoint(explanation, target, share) for target, share in explanation.pool.items()],
        "drained": [
            {"address": format_address(left.target.address), "port": left.target.port, "why": left.why}
            for left in explanation.drained
        ],
        "kernel": {"agrees": agrees, "difference": difference, **_walk_document(explanation.walk)},
    }
    if explanation.flows is not None:
        document["flows"] = [flow_document(flow) for flow in explanation.flows]
    return document


def _endpoint(explanation: Explanation, target: Target, share: Fraction) -> Document:
    seen = seen_source(explanation, target)
    return {
        "address": format_address(target.address),
        "port": target.port,
        "local": target.local,
        "share": round(float(share), 6),
        "sees": None if seen is None else format_address(seen),
        "masqueraded": seen != explanation.packet.source,
    }


def seen_source(explanation: Explanation, target: Target) -> Address | None:
    """Tell which source address the endpoint will see; None if the node's address cannot be told."""
    packet, outcome = explanation.packet, explanation.outcome
    assert isinstance(outcome, Answered)  # noqa: S101 - nobody sees what is not answered
    if explanation.walk is not None and explanation.walk.relayed:
        return explanation.source_towards(target.address) or explanation.side.node.address
    if target.address not in outcome.masqueraded:
        return packet.source
    if target.address in explanation.situation.own_addresses and not packet.from_node:
        return packet.source
    return explanation.source_towards(target.address) or explanation.side.node.address


def reasons(explanation: Explanation) -> Iterable[str]:
    """Give the plan's reasons in sentences."""
    frontend, outcome, packet = explanation.frontend, explanation.outcome, explanation.packet
    if frontend is not None:
        yield f"{frontend.key} is the {frontend.kind.value} of {frontend.port_name}"
    match outcome:
        case Dropped(why) | Rejected(why):
            yield why
            if isinstance(outcome, Dropped) and frontend is not None and "no local" in why:
                yield "dropped rather than rejected, because another node can answer"
        case Answered():
            yield from _answer_reasons(explanation, outcome)
        case _:
            place = f"{format_endpoint(packet.destination, packet.port)}/{packet.protocol.label}"
            strays = explanation.walk is not None and explanation.walk.refuses_strays
            what = "refused, for in this mode the node has the address" if strays else "the kernel routes it as it is"
            yield f"no Service is reached at {place}: {what}"
    if frontend is None:
        yield from hints(explanation.situation, packet)
    yield from _drained_words(explanation.drained)


def _drained_words(found: Sequence[Left]) -> Iterable[str]:
    for left in found[:_MANY]:
        yield f"{left.target} is there, but gets no new connection ({left.why})"
    if len(found) > _MANY:
        yield f"{len(found) - _MANY} more endpoints are drained"


_CHOICES = {
    Algorithm.RANDOM: "each new connection goes to one of them by chance",
    Algorithm.ROUND_ROBIN: "new connections go to them in turn",
    Algorithm.SOURCE_HASH: "the client's address decides which of them it gets, the same on every node",
    Algorithm.MAGLEV: "the client's address and port decide which of them it gets (Maglev), the same on every node",
}


def _answer_reasons(explanation: Explanation, outcome: Answered) -> Iterable[str]:
    frontend, packet = outcome.frontend, explanation.packet
    pod = from_pod(explanation.side.node, packet)
    action = explanation.action
    if frontend.short_circuit is not None and (pod or packet.from_node):
        who = "a Pod" if pod else "this node itself"
        yield f"the client is {who}, so the external policy Local does not bind it: every endpoint may answer"
    elif frontend.short_circuit is not None:
        yield "the external policy is Local: only endpoints on this node answer, and they see the client's address"
    if frontend.allowed_sources is not None:
        yield "the source is in loadBalancerSourceRanges"
    assert action is not None  # noqa: S101 - it is answered
    yield _CHOICES[action.spread.algorithm] + (", by weight" if action.spread.weights else "")
    if explanation.service is not None and (seconds := wishes(explanation.service[0]).slow_start):
        yield f"an endpoint that joins has less than its share for {seconds} s (slow start)"
    if action.affinity_seconds is not None:
        shared = ", at all ports of this address" if action.shared_affinity else ""
        yield f"after its first choice this client stays with it for {action.affinity_seconds} s{shared}"
    if explanation.walk is not None and explanation.walk.relayed:
        yield "relayed: endpoints see this node, whoever the client is"
        return
    yield _masquerade_reason(explanation, action, outcome, pod=pod)
    if bypassed(explanation):
        yield "endpoints elsewhere answer this client directly: it hears them if that way leads through this node"


def _masquerade_reason(explanation: Explanation, action: Forward, outcome: Answered, *, pod: bool) -> str:
    if action.masquerade is Masquerade.ALWAYS:
        if explanation.side.node.masquerade_all and outcome.frontend.kind.value == "cluster IP":
            return "masqueraded: --masquerade-all is set"
        return "masqueraded, so that the answer comes back through this node"
    if action.masquerade is Masquerade.UNLESS_POD and not pod:
        return "masqueraded, because the client is not a Pod"
    if outcome.masqueraded:
        return "not masqueraded, except where the client is its own endpoint (hairpin)"
    return "not masqueraded: the endpoint sees the client's own address"


def _walk_document(walk: Walk | None) -> Document:
    if walk is None:
        return {"outcome": None, "path": []}
    document: Document = {
        "outcome": walk.end.value,
        "path": [
            {"object": step.object, "text": step.text, "effect": step.effect, "state": step.state.value}
            for step in walk.steps
        ],
    }
    if walk.remembered is not None:
        address, port, seconds = walk.remembered
        document["remembered"] = {"endpoint": format_endpoint(address, port), "seconds": round(seconds)}
    return document


def flow_document(flow: Flow) -> Document:
    """Describe one tracked connection: as the client sees it, and as the endpoint does."""
    return {
        "client": format_endpoint(flow.source, flow.source_port),
        "vip": format_endpoint(flow.destination, flow.destination_port),
        "endpoint": format_endpoint(flow.reply_source, flow.reply_source_port),
        "sees": format_endpoint(flow.reply_destination, flow.reply_destination_port),
        "secondsLeft": flow.timeout,
        "answered": bool(flow.status & 2),
    }
