"""Writes a choice as rules of a frontend: a step sets the target, and later steps no longer find the choice. Pure.

HAProxy ends when a request keeps a thread for two seconds, and with it all connections. PCRE alone stops after ten
million steps, which are 30 ms: a hundred expressions of the kind `(a+)+` would do. So each has few steps here; what
meets this limit counts as no match. Only where paths decide what guards a request, those expressions that may guard
have all the steps that they need: there paths must be short (`longest_path`).
"""

from collections.abc import Iterator
from typing import Final

from vipwire.ingress.haproxy.readings import parameter
from vipwire.ingress.haproxy.words import Word, line, plain, quoted
from vipwire.ingress.plan.expressions import is_costly
from vipwire.ingress.plan.sites import Aspect, Bound, Chance, Choice, Compared, Condition

LIMIT: Final = "(*LIMIT_MATCH=20000)"
"""For PCRE: 0.05 ms."""
_LONGEST_PATH: Final = 256
_MOST_STEPS: Final = 100_000_000
"""Steps of all expressions for one request: 0.3 s."""


def longest_path(expressions: int) -> int:
    """Return how long a path may be that so many expressions are to guard, each of three repeats at most."""
    return min(_LONGEST_PATH, int((6 * _MOST_STEPS / max(1, expressions)) ** (1 / 3)))


def choice_lines(choice: Choice, rule: str = "http-request", *, guards: bool = False) -> Iterator[str]:
    """Write the steps of a choice. `rule` is the word that such a rule begins with.

    `guards`: expressions of the path decide what guards a request.
    """
    name = plain(choice.name)
    for step in choice.steps:
        target, when = plain(step.target), Word(" ".join(condition(each, guards=guards) for each in step.when))
        form = f"{rule} set-var(txn.target) str({target}) if {{{{ var(txn.target) -m str {name} }}}} {{}}"
        yield line(form, when).rstrip()


def condition(of: Condition, *, guards: bool = False) -> str:
    """Write what must hold of a request, in braces. `guards` as for `choice_lines`."""
    if isinstance(of, Chance):
        return f"{{ rand({plain(of.whole)}) lt {plain(of.part)} }}"
    if isinstance(of, Bound):
        begin = f"{{ req.cook({plain(of.name)}) -m beg -- {plain(of.mark)}. }}"
        return f"{begin} {{ nbsrv({plain(of.pool)}) gt 0 }}"
    how = "-m reg" if of.expression else "-m str"
    if of.value == "}":  # which would end the condition, however it is quoted
        return f"{_found(of)}{{ {_fetch(of)} -m reg -- '^}}$' }}"
    # A costly one guards nothing (`gateway.plan.rules`): what it could match is closed instead.
    is_limited = of.expression and not (guards and of.aspect is Aspect.PATH and not is_costly(of.value))
    value = f"{LIMIT}{of.value}" if is_limited else of.value
    return f"{_found(of)}{{ {_fetch(of)} {how} -- {quoted(value)} }}"


def _found(of: Compared) -> str:
    """Write that a query has a parameter: where it has not, `_fetch` takes the whole query."""
    if of.aspect is not Aspect.QUERY:
        return ""
    return f"{{ query -m reg -- {quoted(f'(?:^|&){parameter(of.name)}(?:[=&]|$)')} }} "


def _fetch(of: Compared) -> str:
    match of.aspect:
        case Aspect.METHOD:
            return "method"
        case Aspect.PATH:
            return "path"
        case Aspect.COOKIE:
            return f"req.cook({plain(of.name)})"
        case Aspect.QUERY:
            # `url_param` takes `;` and `?` for borders as well, and compares names that are not decoded.
            name = parameter(of.name)
            first = f"^(?:(?!{name}(?:[=&]|$))[^&]*+&)*+{name}=?([^&]*+).*$"
            return quoted(f'query,regsub("{first}","\\1"),url_dec(1)')
        case Aspect.HEADER:
            return f"req.hdr({plain(of.name)})" if of.split else f"req.fhdr({plain(of.name)})"
