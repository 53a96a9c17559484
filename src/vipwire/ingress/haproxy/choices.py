"""Writes a choice as rules of a frontend: a step sets the target, and later steps no longer find the choice. Pure."""

from collections.abc import Iterator

from vipwire.ingress.haproxy.words import Word, line, plain, quoted
from vipwire.ingress.plan.sites import Aspect, Bound, Chance, Choice, Compared, Condition


def choice_lines(choice: Choice, rule: str = "http-request", path: str = "path") -> Iterator[str]:
    """Write the steps of a choice. `rule` is the word that such a rule begins with; `path` is where the path is."""
    name = plain(choice.name)
    for step in choice.steps:
        target, when = plain(step.target), Word(" ".join(condition(each, path) for each in step.when))
        form = f"{rule} set-var(txn.target) str({target}) if {{{{ var(txn.target) -m str {name} }}}} {{}}"
        yield line(form, when).rstrip()


def condition(of: Condition, path: str = "path") -> str:
    """Write what must hold of a request, in braces."""
    if isinstance(of, Chance):
        return f"{{ rand({plain(of.whole)}) lt {plain(of.part)} }}"
    if isinstance(of, Bound):
        begin = f"{{ req.cook({plain(of.name)}) -m beg -- {plain(of.mark)}. }}"
        return f"{begin} {{ nbsrv({plain(of.pool)}) gt 0 }}"
    how = "-m reg" if of.expression else "-m str"
    if of.value == "}":  # which would end the condition, however it is quoted
        return f"{{ {_fetch(of, path)} -m reg -- '^}}$' }}"
    return f"{{ {_fetch(of, path)} {how} -- {quoted(of.value)} }}"


def _fetch(of: Compared, path: str) -> str:
    match of.aspect:
        case Aspect.METHOD:
            return "method"
        case Aspect.PATH:
            return path
        case Aspect.COOKIE:
            return f"req.cook({plain(of.name)})"
        case Aspect.QUERY:
            return f"url_param({plain(of.name)}),url_dec"
        case Aspect.HEADER:
            return f"req.hdr({plain(of.name)})" if of.split else f"req.fhdr({plain(of.name)})"
