"""Decides whether a packet meets a rule's conditions: yes, no, or unknown. Pure.

`Surroundings` answer for facts outside of the packet (node addresses, sets, lists, chance), or return None. An
unknown condition yields None, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from vipwire.model.net import Address, Protocol, format_address, parse_address
from vipwire.modes.xtables.rule_text import Condition
from vipwire.plan.resolve import Packet
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict

_SCALE: Final = 1 << 31
"""The kernel stores probabilities in 31 bits."""
_STATES: Final = frozenset({"NEW", "RELATED", "ESTABLISHED", "INVALID", "UNTRACKED", "SNAT", "DNAT"})
_FLAGS: Final = frozenset({"FIN", "SYN", "RST", "PSH", "ACK", "URG"})
_LARGEST_PORT: Final = 0xFFFF


@dataclass(slots=True)
class PacketHeader:
    """The first packet of a connection in its current form. `translated`: a DNAT rule has changed its destination."""

    packet: Packet
    source: Address
    destination: Address
    port: int
    mark: int = 0
    translated: bool = False

    @classmethod
    def of(cls, packet: Packet) -> "PacketHeader":
        """Return the header of a packet at its arrival, or as a local process sends it."""
        return cls(packet, packet.source, packet.destination, packet.port)


class Lookup(NamedTuple):
    """The result of a set look-up: whether the packet is in it, the element's mark, and a step for the reader."""

    found: bool
    mark: int = 0
    steps: tuple[Step, ...] = ()


class ListedRule(NamedTuple):
    """A rule of a chain, in the words of iptables-save, compared with the plan.

    An empty text is the chain itself. `shown` replaces the text in output. `detail` is data of the mode.
    """

    text: str
    state: ObjectState
    shown: str = ""
    detail: str = ""


def compare_rules(
    seen: Sequence[str] | None, planned: Sequence[str], strange: ObjectState = ObjectState.DIFFERENT
) -> Iterator[ListedRule]:
    """Compare a chain's rules, in their order, with the planned ones; the missing ones come last.

    `seen` is None if the chain does not exist. `strange` is the state of unplanned rules.
    """
    if seen is None:
        if planned:
            yield ListedRule("", ObjectState.MISSING)
        return
    at = 0
    for rule in seen:
        found = rule in planned[at:]
        at = planned.index(rule, at) + 1 if found else at
        yield ListedRule(rule, ObjectState.PLANNED if found else strange)
    yield from (ListedRule(rule, ObjectState.MISSING) for rule in planned if rule not in seen)


class Surroundings:
    """Answers rules' questions outside of the packet; None for unknown. Each mode overrides its part."""

    def list_rules(self, table: str, chain: str, header: PacketHeader) -> Iterable[ListedRule] | None:
        """List the rules of a chain that the packet may match, missing ones last; None without the chain."""
        raise NotImplementedError

    def owns_address(self, address: Address) -> bool:
        raise NotImplementedError

    def look_up(self, name: str, fields: str, header: PacketHeader) -> Lookup | None:
        del name, fields, header
        return None

    def draw(self, chance: Fraction, *, in_turn: bool) -> bool | None:
        """Decide a `statistic` match: by chance, or in turn."""
        del chance, in_turn
        return None

    def recall(self, name: str, seconds: int) -> bool | None:
        """Report whether a list of `-m recent` saw the client in the last `seconds`."""
        del name, seconds
        return None

    def run_program(self, code: str, source: Address) -> bool | None:
        """Run a program of `-m bpf` on a client's packet; raise ValueError if that fails."""
        del code, source
        return None


def evaluate_conditions(
    conditions: tuple[Condition, ...], header: PacketHeader, surroundings: Surroundings
) -> "Judgement":
    """Judge a packet by all conditions in order, until one fails.

    After an unknown condition, vipwire draws no random number: the kernel may not have drawn one either.
    """
    judgement = Judgement(header, surroundings)
    for condition in conditions:
        if judgement.holds is None and condition.option in _WITH_EFFECT:
            continue
        holds = judgement.decide(condition)
        if holds is False:
            judgement.holds = False
            break
        if holds is None:
            judgement.holds = None
    return judgement


def would_hold(conditions: tuple[Condition, ...], header: PacketHeader, surroundings: Surroundings) -> bool:
    """Report whether a packet would match a missing rule, apart from chance and lists."""
    plain = tuple(each for each in conditions if each.option not in _WITH_EFFECT)
    return evaluate_conditions(plain, header, surroundings).holds is True


def is_destined_here(header: PacketHeader, surroundings: Surroundings) -> bool:
    packet = header.packet
    return (packet.to_node and header.destination == packet.destination) or surroundings.owns_address(
        header.destination
    )


def parse_masked(text: str) -> tuple[int, int]:
    """Parse `VALUE/MASK`; the default mask has all bits."""
    value, slash, mask = text.partition("/")
    return int(value, 0), int(mask, 0) if slash else 0xFFFFFFFF


class Judgement:
    """The result of one rule's conditions: `holds` is None if unknown. `steps` and `effects` are for the reader."""

    def __init__(self, header: PacketHeader, surroundings: Surroundings) -> None:
        self._header, self._around = header, surroundings
        self.holds: bool | None = True
        self.steps: list[Step] = []
        self.effects: list[Effect] = []

    def decide(self, condition: Condition) -> bool | None:
        try:
            found = _CONDITIONS[condition.option](self, condition)
        except (ValueError, KeyError, ZeroDivisionError, OverflowError):
            return None
        return None if found is None else found is condition.wanted

    def match_source(self, condition: Condition) -> bool | None:
        return _is_within(self._header.source, condition.words[0])

    def match_destination(self, condition: Condition) -> bool | None:
        return _is_within(self._header.destination, condition.words[0])

    def match_original_destination(self, condition: Condition) -> bool | None:
        return _is_within(self._header.packet.destination, condition.words[0])

    def match_interface(self, condition: Condition) -> bool | None:
        name, here = condition.words[0], self._header.packet.interface
        return here.startswith(name[:-1]) if name.endswith("+") else here == name

    def match_protocol(self, condition: Condition) -> bool | None:
        word, protocol = condition.words[0].lower(), self._header.packet.protocol
        if word.isdecimal():
            return int(word) in (0, protocol)
        return word in ("all", protocol.label)

    def match_port(self, condition: Condition) -> bool | None:
        return self._header.port in _parse_ports(condition.words[0])

    def match_ports(self, condition: Condition) -> bool | None:
        ranges = [_parse_ports(each) for each in condition.words[0].split(",")]
        return any(self._header.port in each for each in ranges)

    def match_original_port(self, condition: Condition) -> bool | None:
        return self._header.packet.port in _parse_ports(condition.words[0])

    def match_state(self, condition: Condition) -> bool | None:
        states = set(condition.words[0].split(","))
        if not states <= _STATES:
            return None
        return "NEW" in states or ("DNAT" in states and self._header.translated)

    def match_direction(self, condition: Condition) -> bool | None:
        """Match `--ctdir ORIGINAL`: true for a connection's first packet."""
        return condition.words[0] == "ORIGINAL"

    def match_mark(self, condition: Condition) -> bool | None:
        value, mask = parse_masked(condition.words[0])
        return self._header.mark & mask == value

    def match_local_source(self, condition: Condition) -> bool | None:
        """Match `--src-type LOCAL`: the kernel has dropped incoming packets with an address of this node."""
        return self._header.packet.from_node if condition.words[0] == "LOCAL" else None

    def match_local_destination(self, condition: Condition) -> bool | None:
        return is_destined_here(self._header, self._around) if condition.words[0] == "LOCAL" else None

    def match_tcp_flags(self, condition: Condition) -> bool | None:
        """Match `--tcp-flags MASK SET`: a connection's first segment has SYN alone."""
        mask, wanted = (set(each.split(",")) - {"NONE"} for each in condition.words)
        if not (mask | wanted) <= _FLAGS:
            return None
        return self._header.packet.protocol is Protocol.TCP and mask & {"SYN"} == wanted

    def match_set(self, condition: Condition) -> bool | None:
        name, fields = condition.words
        found = self._around.look_up(name, fields, self._header)
        if found is None:
            return None
        self.steps += found.steps
        return found.found

    def match_chance(self, condition: Condition) -> bool | None:
        mode = condition.words[0]
        if mode == "random":
            chance = Fraction(round(float(condition.find_option("--probability")) * _SCALE), _SCALE)
        elif mode == "nth":
            condition.find_option("--packet")
            chance = Fraction(1, int(condition.find_option("--every")))
        else:
            return None
        return self._around.draw(chance, in_turn=mode == "nth") if 0 <= chance <= 1 else None

    def match_recalled(self, condition: Condition) -> bool | None:
        return self._around.recall(self._split_list(condition), int(condition.find_option("--seconds")))

    def match_remembering(self, condition: Condition) -> bool | None:
        client, name = format_address(self._header.source), self._split_list(condition)
        self.effects.append(Effect(Verdict.REMEMBER, f"{client} in {name}"))
        return True

    def _split_list(self, condition: Condition) -> str:
        """Return the name of a list of whole addresses; raise ValueError for any other list."""
        condition.find_option("--rsource")
        mask = parse_address(condition.find_option("--mask"))
        if len(mask) != len(self._header.source) or any(byte != 0xFF for byte in mask):
            raise ValueError(condition.find_option("--mask"))
        return condition.find_option("--name")

    def match_program(self, condition: Condition) -> bool | None:
        return self._around.run_program(condition.words[0], self._header.source)


def _is_within(address: Address, text: str) -> bool:
    """Report whether an address is in a network: `10.0.0.0/8`, `::1`, or any mask, `0.0.0.1/0.0.0.3`."""
    network, slash, size = text.partition("/")
    wanted, bits = parse_address(network), len(address) * 8
    if len(wanted) != len(address):
        return False
    if not slash or size.isdecimal():
        length = int(size) if slash else bits
        if length > bits:
            raise ValueError(text)
        mask = ((1 << length) - 1) << (bits - length)
    else:
        mask = int.from_bytes(parse_address(size))
    return int.from_bytes(address) & mask == int.from_bytes(wanted) & mask


def _parse_ports(text: str) -> range:
    low, colon, high = text.partition(":")
    first, last = int(low or 0), int((high or _LARGEST_PORT) if colon else low)
    if not 0 <= first <= last <= _LARGEST_PORT:
        raise ValueError(text)
    return range(first, last + 1)


_CONDITIONS: Final[Mapping[str, Callable[[Judgement, Condition], bool | None]]] = {
    "-s": Judgement.match_source,
    "-d": Judgement.match_destination,
    "-i": Judgement.match_interface,
    "-p": Judgement.match_protocol,
    "--dport": Judgement.match_port,
    "--dports": Judgement.match_ports,
    "--ctorigdst": Judgement.match_original_destination,
    "--ctorigdstport": Judgement.match_original_port,
    "--ctdir": Judgement.match_direction,
    "--ctstate": Judgement.match_state,
    "--mark": Judgement.match_mark,
    "--src-type": Judgement.match_local_source,
    "--dst-type": Judgement.match_local_destination,
    "--tcp-flags": Judgement.match_tcp_flags,
    "--match-set": Judgement.match_set,
    "--mode": Judgement.match_chance,
    "--rcheck": Judgement.match_recalled,
    "--set": Judgement.match_remembering,
    "--bytecode": Judgement.match_program,
}
_WITH_EFFECT: Final = frozenset({"--mode", "--rcheck", "--set"})
"""Options that count or remember every packet that reaches them."""
