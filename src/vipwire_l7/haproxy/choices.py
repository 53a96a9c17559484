"""Writes a choice: as rules of a frontend, or as entries of a map if it has weights only. Pure.

A step sets the target, and later steps no longer match the choice. Of a choice with weights only, a request draws a
number below the sum of the weights, and the map's entry `choice:number` leads to a pool: so a command changes the
weights. The choice's name ends with that sum. If the sum exceeds `_MOST_SHARES`, the choice is written as rules.

HAProxy exits with all its connections when a request keeps a thread for two seconds, and a shorter delay already
slows the requests of other tenants. PCRE alone stops after ten million steps, which take 30 ms. So each expression
has few steps here, and only for short texts, since one step may scan all of a text. A text that exceeds these limits
counts as no match. `plan.budget` limits the number of expressions. Only where paths decide which access controls a
request meets, the expressions that may guard have all the steps that they need. There, paths must be so short
(`find_longest_path`) that all expressions together take only a few ms.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeGuard

from vipwire_l7.haproxy.readings import write_parameter_expression
from vipwire_l7.haproxy.words import Word, write_line, write_plain, write_quoted
from vipwire_l7.plan.budget import MOST_VALUES
from vipwire_l7.plan.expressions import count_steps_at, is_costly
from vipwire_l7.plan.sites import Aspect, Chance, Choice, Comparison, Condition, SessionBound

_LIMIT: Final = "(*LIMIT_MATCH={})"
_STEPS, _STEPS_OF_COSTLY = 1000, 200
REWRITING: Final = _LIMIT.format(20_000)
"""The start of the one expression that rewrites a request's path. It has more steps, for the path matched before."""
LONGEST: Final = 512
"""The maximum length in bytes of a text that an expression may match."""
_IS_SHORT: Final = f"(?!.{{{LONGEST + 1}}})"
_LONGEST_PATH: Final = 256
_MOST_STEPS: Final = 500_000
"""The maximum of PCRE's steps of all expressions that guard, for one request."""
_SLACK: Final = 4
"""The upper bound of PCRE's internal steps for one of the steps counted here."""


def write_limited_expression(begin: str, rest: str) -> str:
    """Write an expression that stops soon. `begin`, with its ^, precedes the part with a limited length."""
    steps = _STEPS_OF_COSTLY if is_costly(rest) else _STEPS
    return f"{_LIMIT.format(steps)}{begin}{_IS_SHORT}{rest}"


def write_guarding_expression(begin: str, rest: str, longest: int) -> str:
    """Write an expression with enough steps for paths up to the length `longest`."""
    return f"{_LIMIT.format(_STEPS + _SLACK * count_steps_at(rest, longest))}{begin}{rest}"


def find_longest_path(expressions: Iterable[str]) -> int:
    """Return the maximum length of a path that these expressions may guard."""
    found = tuple(expressions)
    alike = Counter(count_steps_at(each, _LONGEST_PATH) for each in found)
    one = {count_steps_at(each, _LONGEST_PATH): each for each in found}

    def fits(length: int) -> bool:
        return sum(number * count_steps_at(one[key], length) for key, number in alike.items()) <= _MOST_STEPS

    return next(filter(fits, range(_LONGEST_PATH, 0, -1)), 0)


def list_guarding_expressions(choice: Choice) -> Iterator[str]:
    """Yield the regular expressions of paths by which a choice may enforce access control."""
    return (each.value for step in choice.steps for each in step.when if _may_guard(each))


def _may_guard(of: Condition) -> TypeGuard[Comparison]:
    # A costly expression guards nothing: `gateway.plan.rules` denies all paths that it could match.
    return isinstance(of, Comparison) and of.aspect is Aspect.PATH and of.expression and not is_costly(of.value)


def write_choice(choice: Choice, rule: str = "http-request", *, guards: bool = False) -> Iterator[str]:
    """Write the steps of a choice. `rule` is the keyword that each rule begins with.

    `guards`: expressions of the path decide which access controls a request meets.
    """
    name, longest = write_plain(choice.name), find_longest_path(list_guarding_expressions(choice)) if guards else 0
    for step in choice.steps:
        target, when = write_plain(step.target), Word(" ".join(write_condition(each, longest) for each in step.when))
        form = f"{rule} set-var(txn.target) str({target}) if {{{{ var(txn.target) -m str {name} }}}} {{}}"
        yield write_line(form, when).rstrip()


def write_condition(of: Condition, longest: int = 0) -> str:
    """Write a condition as an ACL in braces. `longest` is the maximum length of guarded paths, or 0."""
    if isinstance(of, Chance):
        return f"{{ rand({write_plain(of.whole)}) lt {write_plain(of.part)} }}"
    if isinstance(of, SessionBound):
        begin = f"{{ req.cook({write_plain(of.name)}) -m beg -- {write_plain(of.mark)}. }}"
        return f"{begin} {{ nbsrv({write_plain(of.pool)}) gt 0 }}"
    value = of.value
    if longest and _may_guard(of):
        value = write_guarding_expression("^", value.removeprefix("^"), longest)
    elif of.expression:
        value = write_limited_expression("^", value.removeprefix("^"))
    how = "-m reg" if of.expression else "-m str"
    if value == "}":  # would end the condition, however it is quoted
        how, value = "-m reg", "^}$"
    return _write_comparison(of, f"{how} -- {write_quoted(value)}")


def _write_comparison(of: Comparison, comparison: str) -> str:
    """Write a comparison with few values of a request, however many the client sends."""
    fetch = _write_fetch(of)
    if of.aspect is Aspect.COOKIE:
        return f"{{ {fetch},set-var(txn.value) -m found }} {{ var(txn.value) {comparison} }}"
    if of.aspect is Aspect.HEADER and (of.split or of.expression):
        name = write_plain(of.name)
        long = f"!{{ req.fhdr({name}),length gt {LONGEST} }} " if of.split else ""
        return f"{{ req.fhdr_cnt({name}) le {MOST_VALUES} }} {long}{{ {fetch} {comparison} }}"
    return f"{_write_query_test(of)}{{ {fetch} {comparison} }}"


def _write_query_test(of: Comparison) -> str:
    """Write that a query has a parameter. Without the parameter, `_write_fetch` returns the whole query."""
    if of.aspect is not Aspect.QUERY:
        return ""
    return f"{{ query -m reg -- {write_quoted(f'(?:^|&){write_parameter_expression(of.name)}(?:[=&]|$)')} }} "


def _write_fetch(of: Comparison) -> str:
    match of.aspect:
        case Aspect.METHOD:
            return "method"
        case Aspect.PATH:
            return "path"
        case Aspect.COOKIE:
            return f"req.cook({write_plain(of.name)})"
        case Aspect.QUERY:
            # `url_param` also splits at `;` and `?`, and does not decode names.
            name = write_parameter_expression(of.name)
            first = f"^(?:(?!{name}(?:[=&]|$))[^&]*+&)*+{name}=?([^&]*+).*$"
            return write_quoted(f'query,regsub("{first}","\\1"),url_dec(1)')
        case Aspect.HEADER:
            return f"req.hdr({write_plain(of.name)})" if of.split else f"req.fhdr({write_plain(of.name)})"


SHARES: Final = "shares"
_MOST_SHARES: Final = 256
_IS_SHARED: Final = "{{ var(txn.target) -m beg choice: }}"


def list_share_entries(choice: Choice, choices: frozenset[str]) -> dict[str, str]:
    """Return the map entries of a choice; none if it needs rules. `choices` are the names of all choices."""
    if not 0 < choice.whole <= _MOST_SHARES or not choices.isdisjoint(choice.targets):
        return {}
    drawn: list[str] = []
    left = choice.whole
    for step in choice.steps:
        match step.when:
            case ():
                part = left
            case (Chance(part, of),) if of == left:
                pass
            case _:
                return {}
        drawn += [step.target] * part
        left -= part
    return {f"{choice.name}:{number}": target for number, target in enumerate(drawn)}


def write_share_rules(file: str, rule: str = "http-request") -> Iterator[str]:
    """Write the rules that draw, after the rules of the other choices. `rule` is the first keyword of each."""
    yield write_line(f"{rule} set-var(txn.whole) var(txn.target),field(3,:) if {_IS_SHARED}")
    yield write_line(f"{rule} set-var(txn.draw) rand,mod(txn.whole) if {_IS_SHARED}")
    yield write_line(f"{rule} set-var(txn.target) var(txn.target),concat(:,txn.draw),map_str({file}) if {_IS_SHARED}")


def find_shared_choices(choices: Iterable[Choice]) -> Mapping[str, dict[str, str]]:
    """Return the entries of all choices that fit into a map, by name."""
    every = tuple(choices)
    names = frozenset(each.name for each in every)
    return {each.name: entries for each in every if (entries := list_share_entries(each, names))}
