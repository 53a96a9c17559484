"""Decides which regular expressions can be relied on as guards of a path. Pure.

PCRE gives up after some millions of steps, or when its stack is full, and HAProxy takes that for no match: then a
request passes by the guard. Paths that an expression guards are kept short (`haproxy.frontend`); an expression that
may need too many steps for these too is not taken for a guard: what it could match is closed.
"""

import re
from typing import Final

MOST_REPEATS: Final = 3
"""Repeats without an end in one expression: the steps grow with the path's length to the power of their number."""
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_ENDLESS = re.compile(r"[*+]|\{\d+,\}|\{\d{2,}(?:,\d*)?\}")
_LITERAL = re.compile(r"\^?(/(?:[A-Za-z0-9/_~&=:@%,;-])*)")


def is_costly(expression: str) -> bool:
    """Report whether an expression may need more steps than PCRE takes: many repeats, nested ones, or a reference."""
    repeats, open_groups, last = 0, [0], 0
    for token in _TOKEN.findall(expression):
        if token == "(":  # noqa: S105  # not a password
            open_groups.append(repeats)
            last = repeats
        elif token == ")" and len(open_groups) > 1:  # noqa: S105  # not a password
            last = open_groups.pop()
        elif _ENDLESS.fullmatch(token):
            if repeats > last:
                return True
            repeats += 1
            last = repeats
        elif re.fullmatch(r"\\[1-9gk]", token):
            return True
        elif token != "?":  # noqa: S105  # not a password
            last = repeats
    return repeats > MOST_REPEATS


def literal_prefix(expression: str) -> str:
    """Return the whole elements with which all paths begin that an expression can match; nothing for all paths."""
    found = None if "|" in expression else _LITERAL.match(expression)
    return found[1].rpartition("/")[0] if found else ""
