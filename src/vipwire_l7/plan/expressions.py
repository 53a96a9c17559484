"""Decides what regular expressions cost, and which can be relied on as guards of a path. Pure.

PCRE gives up after some millions of steps, or when its stack is full, and HAProxy takes that for no match: then a
request passes by the guard. Paths that an expression guards are kept short (`haproxy.frontend`); an expression that
may need too many steps for these too is not taken for a guard: what it could match is closed.
"""

import re
from dataclasses import dataclass, field
from functools import lru_cache
from math import factorial
from typing import Final

MOST_REPEATS: Final = 3
"""Repeats without an end in one expression: the steps grow with the path's length to the power of their number."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_ENDLESS = re.compile(r"[*+]|\{\d+,\}|\{\d{2,}(?:,\d*)?\}")
_REFERENCE = re.compile(r"\\[1-9gk]")
_TIMES = re.compile(r"\?|\{(\d)(?:,(\d))?\}")
_MOST_WAYS: Final = 1000
"""Ways to match an expression without its repeats: each may be tried."""
_MOST_STEPS: Final = 10_000
_LITERAL = re.compile(r"\^?(/(?:[A-Za-z0-9/_~&=:@%,;-])*)")


@dataclass(slots=True)
class _Group:
    """A group, or all of an expression, while it is read."""

    repeats: int = 0
    """Repeats without an end before it."""
    ways: int = 1
    """Ways to match the branch that is read."""
    branches: int = 0
    """Ways to match the branches before."""
    begins: list[str] = field(default_factory=list)
    """The first token of each branch."""
    at_begin: bool = True


@lru_cache(maxsize=16384)
def _read(expression: str) -> tuple[bool, int, int]:
    """Return whether an expression is costly, its repeats without an end, and the ways to match the rest of it."""
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
    """Report whether the first character tells which branch of a group is to be taken."""
    plain = [each.removeprefix("\\") for each in group.begins]
    return len(set(plain)) == len(plain) == sum(len(each) == 1 and each != "." for each in plain)


def is_costly(expression: str) -> bool:
    """Report whether an expression may need more steps than PCRE takes: many repeats, nested ones, or a reference."""
    costly, _, ways = _read(expression)
    return costly or ways > _MOST_WAYS


def steps_of(expression: str) -> int:
    """Estimate PCRE's steps for an expression that it does not finish; one that scans much counts as several."""
    _, repeats, ways = _read(expression)
    if is_costly(expression) or "(?" in expression.replace("(?:", ""):
        return _MOST_STEPS
    return min((100, 500, 2000)[min(repeats, 2)] * max(1, ways // 10), _MOST_STEPS)


def steps_at(expression: str, length: int) -> int:
    """Return the steps that an expression which is not costly needs for a path."""
    _, repeats, ways = _read(expression)
    return ways * int(length**repeats) // factorial(repeats)


def literal_prefix(expression: str) -> str:
    """Return the whole elements with which all paths begin that an expression can match; nothing for all paths."""
    found = None if "|" in expression else _LITERAL.match(expression)
    return found[1].rpartition("/")[0] if found else ""
