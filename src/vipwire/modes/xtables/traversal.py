"""Follows a packet through chains: rules in order, jumps, effects of targets, verdicts. Pure.

The traversal notes effects, and missing rules that the packet would match. It notes and skips a rule that it cannot
parse; the result is uncertain from there on.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar, Final

from vipwire.errors import DecodeError
from vipwire.model.net import format_endpoint, parse_address
from vipwire.modes.xtables.match import (
    ListedRule,
    PacketHeader,
    Surroundings,
    evaluate_conditions,
    is_destined_here,
    parse_masked,
    would_hold,
)
from vipwire.modes.xtables.rule_text import ParsedRule, parse_rule
from vipwire.reconcile.steps import Effect, ObjectState, Step, Verdict

_DEEPEST: Final = 16
_MOST_RULES: Final = 20_000
"""Limit of tried rules: chains with many jumps between them would take forever."""
_VERDICTS: Final = {each.name: each for each in (Verdict.ACCEPT, Verdict.DROP, Verdict.REJECT, Verdict.RETURN)}
_ENDS: Final = frozenset(
    {Verdict.ACCEPT, Verdict.DROP, Verdict.REJECT, Verdict.DNAT, Verdict.REDIRECT, Verdict.MASQUERADE}
)
"""The verdicts that end a built-in chain."""
_Outcome = tuple[Verdict | None, list[Effect]]
"""The verdict of a rule, None to continue, and its effects."""


class Traversal:
    """One packet on its way. `ended` is the rule whose verdict ended the last built-in chain."""

    def __init__(self, surroundings: Surroundings, header: PacketHeader) -> None:
        self._surroundings, self.header = surroundings, header
        self.steps: list[Step] = []
        self.uncertain = False
        self.masqueraded = False
        self.ended: ListedRule | None = None
        self._where, self._depth, self._tried = "", 0, 0

    def pass_hooks(self) -> Iterator[Verdict | None]:
        """Pass the built-in chains of nat and filter for the packet; yield the verdict of each.

        The next hook depends on the packet's destination, which a verdict may have translated.
        """
        from_node = self.header.packet.from_node
        yield self.run_hook("nat", "OUTPUT" if from_node else "PREROUTING")
        local = is_destined_here(self.header, self._surroundings)
        if from_node:
            yield self.run_hook("filter", "OUTPUT")
            yield self.run_hook("nat", "POSTROUTING")
        if local:
            yield self.run_hook("filter", "INPUT")
        elif not from_node:
            yield self.run_hook("filter", "FORWARD")
            yield self.run_hook("nat", "POSTROUTING")

    def run_hook(self, table: str, chain: str) -> Verdict | None:
        """Pass a built-in chain; return the verdict that ended it, None if no rule did."""
        self._where, self.ended = f"{table} {chain}", None
        verdict = self._run_chain(table, chain, self._surroundings.list_rules(table, chain, self.header) or ())
        return None if verdict is Verdict.RETURN else verdict

    def note(
        self, name: str, text: str = "", state: ObjectState = ObjectState.MISSING, effect: Effect | None = None
    ) -> None:
        """Note an object that is no rule; without an effect, as missing."""
        self.steps.append(Step("", name, text, state, (effect,) if effect else ()))

    def _run_chain(self, table: str, name: str, rules: Iterable[ListedRule]) -> Verdict | None:
        """Evaluate a chain; return the final verdict, RETURN behind a goto, None to continue."""
        self._depth += 1
        try:
            if self._depth > _DEEPEST:
                raise ValueError(name)
            for listed in rules:
                if listed.state is ObjectState.MISSING:
                    self._record_missing(name, listed)
                elif verdict := self._run_rule(table, name, listed):
                    return verdict
        finally:
            self._depth -= 1
        return None

    def _record_missing(self, chain: str, listed: ListedRule) -> None:
        """Note a missing rule, or the missing chain, that the packet would match."""
        if not listed.text or would_hold(parse_rule(listed.text).conditions, self.header, self._surroundings):
            self.steps.append(self._build_step(chain, listed))

    def _run_rule(self, table: str, chain: str, listed: ListedRule) -> Verdict | None:
        """Try a rule; return its verdict, None to continue."""
        at = len(self.steps)
        try:
            verdict, effects, steps = self._try_rule(table, listed)
        except (DecodeError, ValueError):
            self.steps[at:] = [self._build_step(chain, listed, Effect(Verdict.UNREADABLE))]
            self.uncertain = True
            return None
        if effects:
            self.steps[at:at] = [self._build_step(chain, listed, *effects), *steps]
        return verdict

    def _try_rule(self, table: str, listed: ListedRule) -> tuple[Verdict | None, list[Effect], list[Step]]:
        """Judge the packet by a rule, and apply its target. Raise an error for an unknown target."""
        self._tried += 1
        if self._tried > _MOST_RULES:
            raise ValueError(listed.text)
        rule = parse_rule(listed.text)
        judgement = evaluate_conditions(rule.conditions, self.header, self._surroundings)
        if judgement.holds is False:
            missing = (step for step in judgement.steps if step.state is ObjectState.MISSING)
            self.steps += [step for step in missing if step not in self.steps]
            return None, [], []
        if judgement.holds is None or rule.unknown:
            raise ValueError(rule.unknown or listed.text)
        verdict, effects = self._run_target(table, rule)
        if verdict in _ENDS and self.ended is None:
            self.ended = listed
        return verdict, [*judgement.effects, *effects], judgement.steps

    def _run_target(self, table: str, rule: ParsedRule) -> _Outcome:
        if not rule.target:
            return None, []
        if verdict := _VERDICTS.get(rule.target):
            return verdict, [Effect(verdict)]
        if (change := self._CHANGES.get(rule.target)) is not None:
            effects = change(self, rule)
            verdict = effects[-1].verdict if effects else None
            return verdict if verdict in _ENDS else None, effects
        return self._jump(table, rule)

    def _jump(self, table: str, rule: ParsedRule) -> _Outcome:
        """Evaluate the chain of a jump; omit a chain without steps."""
        rules = self._surroundings.list_rules(table, rule.target, self.header)
        if rules is None or rule.options:
            raise ValueError(rule.target)
        before = len(self.steps)
        verdict = self._run_chain(table, rule.target, rules)
        effect = Effect(Verdict.GOTO if rule.goto else Verdict.JUMP, rule.target)
        told = [effect] if verdict in _ENDS or len(self.steps) > before else []
        if verdict in _ENDS:
            return verdict, told
        return Verdict.RETURN if rule.goto else None, told

    def _record_mark(self, rule: ParsedRule) -> list[Effect]:
        value, mask = parse_masked(rule.find_option("--set-xmark"))
        return self._set_mark(self.header.mark & ~mask ^ value)

    def _mark_of_set(self, rule: ParsedRule) -> list[Effect]:
        """Set the mark of a set's element: `-j SET --map-set NAME FIELDS --map-mark`."""
        name, *rest = rule.options[rule.options.index("--map-set") + 1 :]
        if rest[1:] != ["--map-mark"]:
            raise ValueError(rule.target)
        found = self._surroundings.look_up(name, rest[0], self.header)
        if found is None:
            raise ValueError(name)
        self.steps += found.steps
        return self._set_mark(found.mark) if found.found else []

    def _set_mark(self, mark: int) -> list[Effect]:
        self.header.mark = mark
        return [Effect(Verdict.MARK, f"{mark:#x}")]

    def _translate(self, rule: ParsedRule) -> list[Effect]:
        text, header = rule.find_option("--to-destination"), self.header
        host, port = text, header.port
        if text.startswith("[") or text.count(":") == 1:
            host, _, number = text.rpartition(":") if not text.endswith("]") else (text, "", str(port))
            port = int(number)
        header.destination, header.port, header.translated = parse_address(host.strip("[]")), port, True
        return [Effect(Verdict.DNAT, format_endpoint(header.destination, header.port))]

    def _redirect(self, rule: ParsedRule) -> list[Effect]:
        self.header.port, self.header.translated = int(rule.find_option("--to-ports")), True
        return [Effect(Verdict.REDIRECT, self.header.port)]

    def _masquerade(self, rule: ParsedRule) -> list[Effect]:
        del rule
        self.masqueraded = True
        return [Effect(Verdict.MASQUERADE)]

    def _bound_segments(self, rule: ParsedRule) -> list[Effect]:
        rule.find_option("--set-mss")
        return [Effect(Verdict.CLAMP)]

    def _build_step(self, chain: str, listed: ListedRule, *effects: Effect) -> Step:
        name = "" if self._where.endswith(f" {chain}") else chain
        return Step(self._where, name, listed.shown or listed.text, listed.state, effects)

    _CHANGES: ClassVar[dict[str, Callable[["Traversal", ParsedRule], list[Effect]]]] = {
        "MARK": _record_mark,
        "SET": _mark_of_set,
        "DNAT": _translate,
        "REDIRECT": _redirect,
        "MASQUERADE": _masquerade,
        "TCPMSS": _bound_segments,
    }
