"""Accepts regular expressions that PCRE reads as RE2 does, since users write the syntax of RE2. Pure.

One expression that PCRE refuses makes HAProxy refuse the whole configuration, and each search for the faulty part
costs a check of the whole. So this module also refuses expressions that would be too large once compiled.
"""

import re
import warnings
from typing import Final

from vipwire.errors import VipwireError

_LONGEST: Final = 1024
_ALLOWED: Final = re.compile(r"[ -~]+")
_FOREIGN: Final = re.compile(r"\(\?(?!:)|\\[1-9gkQEXRKGCNuU]|\(\*|[*+?}][+]|\[\[[.=]")
"""Syntax that one of both lacks: look-around, references, verbs, possessive repeats, collating elements, Unicode."""
_NAMES: Final = "alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit"
_NAMED: Final = re.compile(rf"\[:\^?(?:{_NAMES}):\]")
_PARTS: Final = re.compile(rf"\\.|\[\^?\]?(?:\\.|{_NAMED.pattern}|[^\]\\])*\]|\{{(\d+)(?:,(\d*))?\}}|.")
"""One token: an escape, a character class, a repeat, or any other character."""
_LARGEST: Final = 32_000
"""The maximum estimate of a compiled expression, in bytes: PCRE takes 65,535."""
_MOST_TIMES: Final = 1000
"""The maximum count of a repeat in RE2."""


class Unsupported(VipwireError):  # noqa: N818  # the route is at fault, not vipwire
    """A value that vipwire cannot serve: the rule answers 500 or is left out. The text is the condition's message."""


def check_expression(text: str) -> str:
    """Return the expression if PCRE reads it as RE2 does; raise Unsupported otherwise."""
    if not text or len(text) > _LONGEST or not _ALLOWED.fullmatch(text):
        raise Unsupported(f"the regular expression {text[:80]!r} is empty, too long or not printable ASCII")
    if _FOREIGN.search(text) or any(_has_unknown_class(part[0]) for part in _PARTS.finditer(text)):
        raise Unsupported(f"the regular expression {text[:80]!r} uses syntax that RE2 does not have")
    try:
        with warnings.catch_warnings():
            # Python warns of `[[`, `--` and `&&` in a class, which it may read otherwise one day.
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unsupported(f"the regular expression {text[:80]!r} cannot be read: {error}") from error
    if _estimate_size(text) > _LARGEST:
        raise Unsupported(f"the regular expression {text[:80]!r} has too many repeats")
    return text


def _has_unknown_class(part: str) -> bool:
    """Report whether a character class uses a POSIX class that PCRE does not know, or one outside of brackets."""
    rest = _NAMED.sub("", part)
    return part.startswith("[") and ("[:" in rest or not rest.endswith("]"))


def _estimate_size(text: str) -> int:
    """Estimate the bytes of a compiled expression: PCRE copies a group that is repeated N times N times."""
    open_groups, last = [0], 0
    for found in _PARTS.finditer(text):
        part = found[0]
        if found[1] is not None:
            times = max(int(found[1]), int(found[2] or 0), 1)
            open_groups[-1] += last * (times - 1) if times <= _MOST_TIMES else _LARGEST
            last *= times
        elif part == "(":
            open_groups.append(20)
        elif part == ")" and len(open_groups) > 1:
            last = open_groups.pop()
            open_groups[-1] += last
        else:
            last = 0
            open_groups[-1] += 40 if part.startswith("[") else 12
    return sum(open_groups)
