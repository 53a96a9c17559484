"""The objects that a packet meets in the kernel, their state compared with the plan, and their verdicts.

Modes yield steps; the texts for people are here, once for all modes.
"""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple


class ObjectState(enum.Enum):
    """An observed object compared with the plan; the value is for people."""

    PLANNED = "as planned"
    DIFFERENT = "not as planned"
    MISSING = "missing"
    FOREIGN = "not ours"


class End(enum.Enum):
    """The end of a packet according to the kernel's objects. UNKNOWN: an object cannot be read."""

    ANSWERED = "answered"
    DROPPED = "dropped"
    REJECTED = "rejected"
    UNTOUCHED = "untouched"
    UNKNOWN = "unknown"


class Verdict(enum.Enum):
    """The effect of an object on a packet. The value is the text for people, with the detail in its braces."""

    ACCEPT = "accepts the packet"
    DROP = "drops it"
    REJECT = "rejects it"
    RESET = "rejects with a TCP reset"
    RETURN = "goes back"
    JUMP = "goes through {}"
    GOTO = "goes to {}"
    DNAT = "sends it to {}"
    REDIRECT = "sends it to port {} of this node"
    MASQUERADE = "replaces the client's address with the node's"
    MARK = "sets the mark {}"
    MARK_MASQUERADE = "marks it for masquerading"
    DRAW = "chooses one of {}"
    REMEMBER = "remembers {}"
    CLAMP = "limits the segment size"
    MEET = "is met"
    UNREADABLE = "vipwire cannot read this, and skips it"
    DELIVER = "has the address: delivers to this node"
    ROUTE = "leads to IPVS on this node"
    BALANCE = "takes the packet"
    SHARE = "gets {}"
    IDLE = "gets no new connections"
    FINISH = "finishes its connections"
    EMPTY = "has no endpoint: refuses the client"
    RELAY = "is relayed to one of {}"
    CONNECT = "{}"
    LEAVE = "nothing: see the rules below"
    OFFLOAD = "offloads the connection after {} packets"
    DIVERGE = "goes another way:"
    MORE = "{} more like these"

    @property
    def end(self) -> End | None:
        """The end of a refused packet; None if the packet continues."""
        return _REFUSALS.get(self)


_REFUSALS = {Verdict.DROP: End.DROPPED, Verdict.REJECT: End.REJECTED, Verdict.RESET: End.REJECTED}


class Effect(NamedTuple):
    """A verdict with its detail: the chain of a jump, the endpoint of a translation."""

    verdict: Verdict
    detail: object = ""

    def __str__(self) -> str:
        return self.verdict.value.format(self.detail)


class Step(NamedTuple):
    """One kernel object that a packet meets, and its effects on this packet.

    `where` is the hook, `object` the object (`chain services`); one of them may be "". `text` is the rule or element
    as the mode's tool prints it. A missing object has no effects.
    """

    where: str
    object: str
    text: str = ""
    state: ObjectState = ObjectState.PLANNED
    effects: tuple[Effect, ...] = ()

    @property
    def place(self) -> str:
        """Hook and object: `prerouting: chain services`."""
        return ": ".join(filter(None, (self.where, self.object)))

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(effect.verdict for effect in self.effects)

    @property
    def effect(self) -> str:
        if self.state is ObjectState.MISSING and not self.effects:
            return "is missing here" if self.text else "does not exist"
        return ", ".join(map(str, self.effects))


def compare_object(key: Any, observed: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> ObjectState:
    if key not in observed:
        return ObjectState.MISSING
    if key not in wanted:
        return ObjectState.FOREIGN
    return ObjectState.PLANNED if observed[key] == wanted[key] else ObjectState.DIFFERENT
