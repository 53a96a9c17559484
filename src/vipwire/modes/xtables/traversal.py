"""A packet's way through chains: rules in their order, jumps, what targets do to the packet, verdicts. Pure.

What takes effect is noted, and what is missing of what the packet would have met. A rule that is not understood is
noted and passed over, and the way is uncertain from there on.
"""

from collections.abc import Callable, Iterable
from typing import ClassVar, Final, NamedTuple, Protocol

from vipwire.errors import DecodeError
from vipwire.model.net import format_endpoint, parse_address
from vipwire.modes.xtables.match import Header, Judgement, Surroundings, judge, masked, would_hold
from vipwire.modes.xtables.rule_text import Rule, parse_rule
from vipwire.reconcile.explainer import ObjectState, Step

_DEEPEST: Final = 16
_MOST_RULES: Final = 20_000
"""Rules that are tried at most: chains that jump to each other in every way would take for ever."""
_ENDS: Final = frozenset({"ACCEPT", "DROP", "REJECT", "DNAT", "REDIRECT", "MASQUERADE"})
"""The targets that end a built-in chain."""
_BACK: Final = "RETURN"
_VERDICTS: Final = {"ACCEPT": "accepts it", "DROP": "drops it", "REJECT": "refuses it", _BACK: "goes back"}


class Listed(NamedTuple):
    """A rule of a chain, in the words of iptables-save, and how it compares with the plan. No text: the chain itself.

    `shown` is what a person is shown of it, where that is not the text. `detail` is what the mode knows of the rule.
    """

    text: str
    state: ObjectState
    shown: str = ""
    detail: str = ""


class Chains(Protocol):
    """The rules that a packet meets."""

    def rules(self, table: str, chain: str, header: Header) -> Iterable[Listed] | None:
        """List the rules of a chain that the packet may match, missing ones last; None if there is no such chain."""
        ...


class UnknownRuleError(ValueError):
    """A rule's effect cannot be told."""


class Traversal:
    """One packet on its way. `ended` is the rule whose verdict ended the last built-in chain."""

    def __init__(self, chains: Chains, surroundings: Surroundings, header: Header) -> None:
        self._chains, self._surroundings, self.header = chains, surroundings, header
        self.steps: list[Step] = []
        self.uncertain = False
        self.masqueraded = False
        self.ended: Listed | None = None
        self._where, self._depth, self._tried = "", 0, 0

    def hook(self, table: str, chain: str) -> str:
        """Pass a built-in chain; return the target that ended it, "" if none did."""
        self._where, self.ended = f"{table} {chain}", None
        verdict = self._chain(table, chain, self._chains.rules(table, chain, self.header) or ())
        return "" if verdict == _BACK else verdict

    def note(self, name: str, text: str, effect: str, state: ObjectState) -> None:
        """Note an object on the way."""
        self.steps.append(Step(name, text, effect, state))

    def _chain(self, table: str, name: str, rules: Iterable[Listed]) -> str:
        """Evaluate a chain; return the verdict that ended all, RETURN behind a goto, "" to go on."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise UnknownRuleError(name)
            for listed in rules:
                if listed.state is ObjectState.MISSING:
                    self._missing(name, listed)
                elif verdict := self._rule(table, name, listed):
                    return verdict
        finally:
            self._depth -= 1
        return ""

    def _missing(self, chain: str, listed: Listed) -> None:
        """Note a rule, or the chain itself, that is not there although the packet would meet it."""
        if not listed.text:
            self.note(self._place(chain), "", "does not exist", listed.state)
        elif would_hold(parse_rule(listed.text).conditions, self.header, self._surroundings):
            self.note(self._place(chain), listed.shown or listed.text, "is missing here", listed.state)

    def _rule(self, table: str, chain: str, listed: Listed) -> str:
        """Try a rule; return its verdict, "" to go on."""
        at, text = len(self.steps), listed.shown or listed.text
        try:
            judgement, verdict, effects = self._tried_on(table, listed)
        except (DecodeError, ValueError):
            effect = "what this does cannot be told; passed over"
            self.steps[at:] = [Step(self._place(chain), text, effect, listed.state)]
            self.uncertain = True
            return ""
        if told := [*judgement.effects, *effects]:
            self.steps[at:at] = [Step(self._place(chain), text, ", ".join(told), listed.state), *judgement.steps]
        return verdict

    def _tried_on(self, table: str, listed: Listed) -> tuple[Judgement, str, list[str]]:
        """Judge the packet by a rule, and do what it says; raise an error if it is not understood."""
        self._tried += 1
        if self._tried > _MOST_RULES:
            raise UnknownRuleError(listed.text)
        rule = parse_rule(listed.text)
        judgement = judge(rule.conditions, self.header, self._surroundings)
        if judgement.holds is False:
            missing = (step for step in judgement.steps if step.state is ObjectState.MISSING)
            self.steps += [step for step in missing if step not in self.steps]
            return Judgement(holds=False), "", []
        if judgement.holds is None or rule.unknown:
            raise UnknownRuleError(rule.unknown or listed.text)
        return judgement, *self._act(table, rule, listed)

    def _act(self, table: str, rule: Rule, listed: Listed) -> tuple[str, list[str]]:
        """Execute a rule's target; return its verdict, and words for it where anything happens."""
        if not rule.target:
            return "", []
        if rule.target in _VERDICTS:
            if rule.target in _ENDS:
                self.ended = listed
            return rule.target, [_VERDICTS[rule.target]]
        if (change := self._CHANGES.get(rule.target)) is not None:
            effects = change(self, rule)
            if rule.target in _ENDS:
                self.ended = listed
                return rule.target, effects
            return "", effects
        return self._jump(table, rule)

    def _jump(self, table: str, rule: Rule) -> tuple[str, list[str]]:
        """Evaluate the chain of a jump; without steps in it there is nothing to tell."""
        rules = self._chains.rules(table, rule.target, self.header)
        if rules is None or rule.options:
            raise UnknownRuleError(rule.target)
        before = len(self.steps)
        verdict = self._chain(table, rule.target, rules)
        told = [f"goes to {rule.target}"] if verdict in _ENDS or len(self.steps) > before else []
        if verdict in _ENDS:
            return verdict, told
        return _BACK if rule.goto else "", told

    def _mark(self, rule: Rule) -> list[str]:
        value, mask = masked(rule.option("--set-xmark"))
        self.header.mark = self.header.mark & ~mask ^ value
        return [f"sets the mark {self.header.mark:#x}"]

    def _mark_of_set(self, rule: Rule) -> list[str]:
        """Set the mark of a set's element: `-j SET --map-set NAME FIELDS --map-mark`."""
        name, *rest = rule.options[rule.options.index("--map-set") + 1 :]
        if rest[1:] != ["--map-mark"]:
            raise ValueError(rule.target)
        found = self._surroundings.look_up(name, rest[0], self.header)
        if found is None:
            raise ValueError(name)
        self.steps += found.steps
        if not found.found:
            return []
        self.header.mark = found.mark
        return [f"sets the mark {self.header.mark:#x}"]

    def _translate(self, rule: Rule) -> list[str]:
        text, header = rule.option("--to-destination"), self.header
        host, port = text, header.port
        if text.startswith("[") or text.count(":") == 1:
            host, _, number = text.rpartition(":") if not text.endswith("]") else (text, "", str(port))
            port = int(number)
        header.destination, header.port, header.translated = parse_address(host.strip("[]")), port, True
        return [f"sends it to {format_endpoint(header.destination, header.port)}"]

    def _redirect(self, rule: Rule) -> list[str]:
        self.header.port, self.header.translated = int(rule.option("--to-ports")), True
        return [f"sends it to port {self.header.port} of this node"]

    def _masquerade(self, rule: Rule) -> list[str]:
        del rule
        self.masqueraded = True
        return ["masquerades it: the endpoint sees this node"]

    def _bound_segments(self, rule: Rule) -> list[str]:
        rule.option("--set-mss")
        return ["bounds the segments' size"]

    def _place(self, chain: str) -> str:
        return self._where if self._where.endswith(f" {chain}") else f"{self._where}: {chain}"

    _CHANGES: ClassVar[dict[str, Callable[["Traversal", Rule], list[str]]]] = {
        "MARK": _mark,
        "SET": _mark_of_set,
        "DNAT": _translate,
        "REDIRECT": _redirect,
        "MASQUERADE": _masquerade,
        "TCPMSS": _bound_segments,
    }
