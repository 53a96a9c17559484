"""Estimates the cost of regular expressions, and decides which can guard a path. Pure.

PCRE gives up after some millions of steps, or when its stack is full, and HAProxy counts that as no match: then a
request bypasses the guard. Paths that an expression guards have a maximum length (`haproxy.frontends`). An expression
that may need too many steps even then is no guard: vipwire denies all paths that it could match.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import factorial
from typing import Final

MOST_REPEATS: Final = 3
"""The maximum of unbounded repeats in one expression: its steps are the path's length to the power of them."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_ENDLESS = re.compile(r"[*+]|\{\d+,\}|\{\d{2,}(?:,\d*)?\}")
_REFERENCE = re.compile(r"\\[1-9gk]")
_TIMES = re.compile(r"\?|\{(\d)(?:,(\d))?\}")
_MOST_WAYS: Final = 1000
"""The maximum of ways to match an expression apart from its repeats: PCRE may try each."""
_MOST_STEPS: Final = 10_000
_LITERAL = re.compile(r"\^?(/(?:[A-Za-z0-9/_~&=:@%,;-])*)")


@dataclass(slots=True)
class _Group:
    """A group, or the whole expression, during parsing."""

    repeats: int = 0
    """The number of unbounded repeats before the group."""
    ways: int = 1
    """Ways to match the current branch."""
    branches: int = 0
    """Ways to match the branches before."""
    begins: list[str] = field(default_factory=list)
    """The first token of each branch."""
    at_begin: bool = True


@lru_cache(maxsize=16384)
def _read_expression(expression: str) -> tuple[bool, int, int]:
    """Return whether an expression is costly, its unbounded repeats, and the ways to match the rest of it."""
    repeats, costly, groups, last = 0, False, [_Group()], _Group()
    for part in _TOKEN.findall(expression):
        group = groups[-1]
        if group.at_begin and part not in ("|", ")"):
            group.begins.append(part)
            group.at_begin = False
        if part == "(":
            groups.append(_Group(repeats))
            last = groups[-1]
        elif part == "|":
            group.branches, group.ways, group.at_begin = group.branches + group.ways, 1, True
        elif part == ")" and len(groups) > 1:
            last = groups.pop()
            last.branches += last.ways
            groups[-1].ways = min(groups[-1].ways * last.branches, _MOST_WAYS + 1)
        elif _ENDLESS.fullmatch(part):
            costly |= repeats > last.repeats or (last.branches > 1 and not _tells_branches_apart(last))
            repeats += 1
            last = _Group(repeats)
        elif times := _TIMES.fullmatch(part):
            costly |= part != "?" and repeats > last.repeats
            least, most = int(times[1] or 0), int(times[2] or times[1] or 1)
            more = max(1, last.branches) ** max(0, most - 1) * (abs(most - least) + 1)
            group.ways = min(group.ways * more, _MOST_WAYS + 1)
        else:
            costly |= bool(_REFERENCE.fullmatch(part))
            last = _Group(repeats)
    whole = groups[0]
    return costly or repeats > MOST_REPEATS, repeats, whole.branches + whole.ways


def _tells_branches_apart(group: _Group) -> bool:
    """Report whether the branches of a group begin with different characters."""
    plain = [each.removeprefix("\\") for each in group.begins]
    return len(set(plain)) == len(plain) == sum(len(each) == 1 and each != "." for each in plain)


def is_costly(expression: str) -> bool:
    """Report whether an expression may need more steps than PCRE allows: many or nested repeats, or a reference."""
    costly, _, ways = _read_expression(expression)
    return costly or ways > _MOST_WAYS


def estimate_steps(expression: str) -> int:
    """Estimate the PCRE steps of an expression that does not match. One that scans much counts as several."""
    _, repeats, ways = _read_expression(expression)
    if is_costly(expression) or "(?" in expression.replace("(?:", ""):
        return _MOST_STEPS
    return min((100, 500, 2000)[min(repeats, 2)] * max(1, ways // 10), _MOST_STEPS)


def count_steps_at(expression: str, length: int) -> int:
    """Return the steps that an expression which is not costly needs for a path of this length."""
    _, repeats, ways = _read_expression(expression)
    return ways * int(length**repeats) // factorial(repeats)


def find_literal_prefix(expression: str) -> str:
    """Return the whole path elements that begin all paths an expression can match; empty if there are none."""
    found = None if "|" in expression else _LITERAL.match(expression)
    return found[1].rpartition("/")[0] if found else ""
