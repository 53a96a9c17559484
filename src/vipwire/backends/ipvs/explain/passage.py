"""iptables' tables as a packet passes them in ipvs mode: rules, the sets that they look into, marks. Pure.

What takes effect is noted, and what is missing of what the packet would have met. A rule that is not understood is
noted and passed over, and the way is uncertain from there on.
"""

from dataclasses import dataclass, field

from vipwire.backends.ipvs.explain.describe import describe_element
from vipwire.backends.ipvs.explain.objects import KernelObjects
from vipwire.backends.ipvs.explain.rule_text import Condition, Rule, parse_rule
from vipwire.backends.ipvs.names import ChainName
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.plan.resolve import Packet
from vipwire.reconcile.explainer import ObjectState, Step

_VERDICTS = {
    "ACCEPT": ("accept", "ends the table"),
    "DROP": ("drop", "drops"),
    "REJECT": ("reject", "rejects"),
    "RETURN": ("return", "leaves the chain"),
}
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Node:
    """One family of this node: what it holds and should hold, and its own addresses."""

    family: Family
    held: KernelObjects
    wanted: KernelObjects
    own: frozenset[Address] = frozenset()


@dataclass(slots=True)
class Tables:
    """A packet among the tables."""

    node: Node
    packet: Packet
    source: Address
    destination: Address
    port: int
    mark: int = 0
    masquerade: bool = False
    uncertain: bool = False
    steps: list[Step] = field(default_factory=list)
    _depth: int = 0

    def chain(self, table: str, name: str) -> str:
        """Go through a chain; return the verdict that ended the table, "" to go on behind the jump."""
        key = ChainName(table, name)
        rules, wanted = self.node.held.chains.get(key), self.node.wanted.chains.get(key, ())
        if rules is None:
            if wanted:
                self.note(f"{table} {name}", "", "does not exist", ObjectState.MISSING)
            return ""
        self._depth += 1
        verdict = ""
        for text in rules if self._depth <= _DEEPEST else ():
            if verdict := self.rule(table, name, text, known=text in wanted):
                break
        else:
            for text in wanted:
                if text not in rules and self.holds(text):
                    self.note(f"{table} {name}", text, "is missing here", ObjectState.MISSING)
        self._depth -= 1
        return "" if verdict == "return" else verdict

    def holds(self, text: str) -> bool:
        """Tell whether the packet meets the conditions of a rule that is not there."""
        return all(self.test(each)[0] for each in parse_rule(text).tests)

    def rule(self, table: str, chain: str, text: str, *, known: bool) -> str:
        """Try a rule; return its verdict, "" to go on."""
        state = planned(known)
        try:
            rule = parse_rule(text)
            met: list[Step] = []
            for each in rule.tests:
                holds, steps = self.test(each)
                met += steps
                if not holds:
                    missing = (step for step in steps if step.state is ObjectState.MISSING)
                    self.steps += [step for step in missing if step not in self.steps]
                    return ""
            at = len(self.steps)
            verdict, effect = self.target(table, rule)
        except ValueError:
            self.note(f"{table} {chain}", text, "what this does cannot be told; passed over", state)
            self.uncertain = True
            return ""
        if effect:
            self.steps[at:at] = [Step(f"{table} {chain}", text, effect, state), *met]
        return verdict

    def target(self, table: str, rule: Rule) -> tuple[str, str]:
        """Do what a rule says; return its verdict and words for it, which are empty where nothing happens."""
        if rule.target in _VERDICTS:
            return _VERDICTS[rule.target]
        match rule.target:
            case "MARK":
                value, mask = _masked(rule.option("--set-xmark"))
                self.mark = self.mark & ~mask ^ value
                return "", f"sets the mark {self.mark:#x}"
            case "SET":
                return "", self.map_mark(rule.option("--map-set"), rule.options[2])
            case "MASQUERADE":
                self.masquerade = True
                return "accept", "masquerades"
            case "TCPMSS":
                return "", "bounds the segments' size"
        return self.jump(table, rule.target)

    def jump(self, table: str, chain: str) -> tuple[str, str]:
        """Go to a chain of ours; raise ValueError for a target that is none."""
        held, wanted = self.node.held.chains, self.node.wanted.chains
        if ChainName(table, chain) not in held and ChainName(table, chain) not in wanted:
            raise ValueError(chain)
        before = len(self.steps)
        verdict = self.chain(table, chain)
        return verdict, f"goes to {chain}" if verdict or len(self.steps) > before else ""

    def map_mark(self, name: str, fields: str) -> str:
        """Take the mark of a set's element; return words, "" if there is no such element."""
        found, steps = self.look_up(name, fields)
        self.steps += steps
        if not found:
            return ""
        element = self.node.held.find(name, self.addresses(fields), self.packet.protocol, self.port)
        self.mark = self.node.held.elements[name][element] if element else self.mark
        return f"sets the mark {self.mark:#x}"

    def test(self, test: Condition) -> tuple[bool, list[Step]]:
        """Judge the packet by one condition; return the steps of sets that were looked into."""
        if test.option == "--match-set":
            found, steps = self.look_up(*test.words)
            return found is test.wanted, steps
        return self.judge(test.option, test.words[0]) is test.wanted, []

    def judge(self, option: str, word: str) -> bool:
        """Judge the packet by an option other than that of sets."""
        packet = self.packet
        match option:
            case "-s" | "-d":
                return (self.source if option == "-s" else self.destination) in _prefix(word)
            case "-i":
                return packet.interface.startswith(word[:-1]) if word[-1] == "+" else packet.interface == word
            case "--mark":
                value, mask = _masked(word)
                return self.mark & mask == value
        simple = {
            "-p": packet.protocol.label == word,
            "--src-type": packet.from_node,
            "--dst-type": self.is_own(self.destination),
            "--ctstate": "NEW" in word.split(","),
            "--tcp-flags": packet.protocol is Protocol.TCP,  # SYN,RST SYN: a connection's first packet
        }
        return simple[option]

    def is_own(self, address: Address) -> bool:
        """Tell whether an address is this node's, VIPs included."""
        return address in self.node.held.vips or address in self.node.own or self.packet.to_node

    def addresses(self, fields: str) -> tuple[Address, ...]:
        """Choose what a set's fields are compared with; "" of the second, which is the port's."""
        chosen = {"src": self.source, "dst": self.destination}
        words = fields.split(",")
        if len(words) > 1 and words[1] == "src":
            return ()  # the client's port is of no Service
        return tuple(chosen[word] for index, word in enumerate(words) if index != 1)

    def look_up(self, name: str, fields: str) -> tuple[bool, list[Step]]:
        """Look into a set, and say what was found, or what should have been."""
        addresses, protocol = self.addresses(fields), self.packet.protocol
        found = self.node.held.find(name, addresses, protocol, self.port)
        missing = self.node.wanted.find(name, addresses, protocol, self.port)
        if found is not None:
            known = found in self.node.wanted.elements.get(name, ())
            return True, [Step(f"ipset {name}", describe_element(found), "is met", planned(known))]
        if missing is None:
            return False, []
        effect = "is missing, so the packet does not meet it"
        return False, [Step(f"ipset {name}", describe_element(missing), effect, ObjectState.MISSING)]

    def note(self, name: str, text: str, effect: str, state: ObjectState) -> None:
        """Note an object on the way."""
        self.steps.append(Step(name, text, effect, state))


def planned(same: bool) -> ObjectState:  # noqa: FBT001 - the question is in the name
    """Say whether something that was seen is as it should be."""
    return ObjectState.PLANNED if same else ObjectState.DIFFERENT


def _prefix(text: str) -> Prefix:
    return Prefix.parse(text if "/" in text else f"{text}/{128 if ':' in text else 32}")


def _masked(text: str) -> tuple[int, int]:
    value, slash, mask = text.partition("/")
    return int(value, 0), int(mask, 0) if slash else 0xFFFFFFFF
