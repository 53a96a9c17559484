"""Prints the programs' maps as steps before nftables mode's, and says which of both serves a client.

One plan yields both, so the rules' result is the packet's. vipwire compares the programs' maps with the plan; a
socket that a program translates sends no packet to the Service's address.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any, Final, NamedTuple

from vipwire.model.net import Address, Family, Protocol, format_endpoint
from vipwire.modes.ebpf.driver import find_node_folder
from vipwire.modes.ebpf.layout import (
    FRONTENDS,
    HEAD,
    PROGRAMS,
    Flag,
    Head,
    OurKey,
    choose_family_suffix,
    describe_key,
    describe_scope,
    endpoints,
    frontend_key,
    is_ours,
    read_endpoint,
    select_rules,
    split_delta,
)
from vipwire.modes.ebpf.remarks import find_remarks, find_standing_remarks
from vipwire.modes.inspection import Inspection
from vipwire.modes.nftables.explain.explainer import INSPECTION as RULES
from vipwire.plan.resolve import Packet
from vipwire.reconcile.delta import Delta
from vipwire.reconcile.explainer import Direct, Explainer, Walk
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict, compare_object

_SHOWN: Final = 4
_SOCKETS: Final = "programs of sockets"


class Programs(NamedTuple):
    """All objects of the mode, and the rules among them as nftables mode's explainer arranges them."""

    observed: Mapping[Any, Any]
    wanted: Mapping[Any, Any]
    rules: Any


class EbpfExplainer(Explainer[Any, Any, Programs]):
    """Explains programs and rules of one family.

    `rules` is nftables mode's explainer. `pods`: the programs can tell Pods' sockets; otherwise the rules serve Pods,
    even if the maps name Pods.
    """

    def __init__(self, family: Family, rules: Explainer[Any, Any, Any], *, pods: bool = True) -> None:
        super().__init__(rules.tool)
        self._family, self._rules = family, rules
        self._led = Flag.NODE | Flag.POD if pods else Flag.NODE

    def write_script(self, delta: Delta[Any, Any]) -> Iterable[str]:
        """Write a difference: nft commands, and changes of maps as comments."""
        theirs, ours = split_delta(delta)
        yield from self._rules.write_script(theirs)
        for sign, part in (("+", ours.added), ("~", ours.changed), ("-", ours.removed)):
            for key in sorted(part):
                yield f"# {sign} {describe_key(key)}"

    def describe_foreign_objects(self) -> str:
        return self._rules.describe_foreign_objects()

    def write_removal_of_foreign(self) -> Iterable[str]:
        return self._rules.write_removal_of_foreign()

    def arrange(self, observed: Mapping[Any, Any], wanted: Mapping[Any, Any], own: frozenset[Address]) -> Programs:
        return Programs(observed, wanted, self._rules.arrange(select_rules(observed), select_rules(wanted), own))

    def trace(self, objects: Programs, packet: Packet) -> Walk:
        """Describe the programs' action on a socket for this address, then follow the packet through the rules."""
        observed, wanted, rules = objects
        found = self._rules.trace(rules, packet)
        steps = (*self._explain_programs(observed, wanted, packet), *found.steps)
        return replace(found, steps=steps, direct=self._find_direct(observed, wanted, packet))

    def _choose_hook(self, packet: Packet) -> OurKey:
        called = "sendmsg" if packet.protocol is Protocol.UDP else "connect"
        return PROGRAMS, f"{called}{choose_family_suffix(self._family)}".encode()

    def _find_direct(self, observed: Mapping[Any, Any], wanted: Mapping[Any, Any], packet: Packet) -> Direct | None:
        """Compare the observed endpoints of sockets with the planned ones; other sockets use the rules."""
        key: OurKey = FRONTENDS, frontend_key(packet.destination, packet.protocol, packet.port)
        held, planned = observed.get(key), wanted.get(key)
        if held is None or self._choose_hook(packet) not in observed:
            return None
        (flags, seconds, _), (meant, *_) = (Head.read(each or bytes(HEAD.size)) for each in (held, planned))
        dealt, pool = (
            Counter(endpoints(self._family, each)) if each else Counter[bytes]() for each in (held, planned)
        )
        words = []
        if surplus := flags & ~meant & self._led:
            words.append(f"programs translate sockets of {describe_scope(surplus)}, but the plan uses rules for them")
        if strays := dealt.keys() - pool.keys():
            words.append(
                f"programs connect some sockets to {self._list_endpoints(strays)}, which are not in the plan"
            )
        elif dealt != pool:
            words.append("programs give the endpoints other shares than the plan")
        return Direct(Flag.NODE in flags, Flag.POD in flags & self._led, "; ".join(words), seconds > 0)

    def _list_endpoints(self, dealt: Iterable[bytes]) -> str:
        found = sorted(map(read_endpoint, dealt))
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        return ", ".join(format_endpoint(*each) for each in found[:_SHOWN]) + more

    def _explain_programs(
        self, observed: Mapping[Any, Any], wanted: Mapping[Any, Any], packet: Packet
    ) -> Iterable[Step]:
        key: OurKey = FRONTENDS, frontend_key(packet.destination, packet.protocol, packet.port)
        held, planned = observed.get(key), wanted.get(key)
        if held is None and planned is None:
            if packet.protocol is not Protocol.SCTP and any(is_ours(each) for each in observed):
                text = f"{format_endpoint(packet.destination, packet.port)}/{packet.protocol.label}"
                yield Step("", _SOCKETS, text, effects=(Effect(Verdict.LEAVE),))
            return
        if self._choose_hook(packet) not in observed:
            yield Step("", _SOCKETS, state=ObjectState.MISSING)
        if held is None:
            yield Step("", _SOCKETS, describe_key(key), ObjectState.MISSING, (Effect(Verdict.LEAVE),))
            return
        effect = Effect(Verdict.CONNECT, self._describe_effect(held, packet))
        yield Step("", _SOCKETS, describe_key(key), compare_object(key, observed, wanted), (effect,))

    def _describe_effect(self, held: bytes, packet: Packet) -> str:
        shown = self._list_endpoints(set(endpoints(self._family, held)))
        which = "unconnected sockets" if packet.protocol is Protocol.UDP else "sockets"
        flags, seconds, _ = Head.read(held)
        rest = "those bound to an address, and all others" if flags & Flag.AS_NODE else "all others"
        stay = f", those of one network namespace to one, which is remembered for {seconds} s" if seconds else ""
        return (
            f"{which} of {describe_scope(flags & self._led)} go to {shown} directly{stay}; {rest}, by the rules below"
        )


def _build_explainer(family: Family, mode: Any) -> EbpfExplainer | None:
    rules = RULES.explainer(family, mode.rules)
    return None if rules is None else EbpfExplainer(family, rules, pods=mode.wanted.knows_pods)


INSPECTION: Final = Inspection(
    _build_explainer,
    remarks=lambda config: chain(find_remarks(config, find_node_folder()), RULES.remarks(config)),
    standing=lambda config: chain(find_standing_remarks(config, find_node_folder()), RULES.standing(config)),
)
