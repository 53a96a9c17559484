"""Accepts regular expressions that HAProxy's PCRE reads as users mean them: what it has in common with RE2. Pure.

What PCRE would refuse must not come to HAProxy, which then refuses all that is configured: to find out which part it
was takes a check of the whole for each. So expressions that are too large once they are compiled are refused here.
"""

import re
import warnings
from typing import Final

from vipwire_l7.gateway.plan.matching.unsupported import Unsupported

_LONGEST: Final = 1024
_ALLOWED: Final = re.compile(r"[ -~]+")
_FOREIGN: Final = re.compile(r"\(\?(?!:)|\\[1-9gkQEXRKGCNuU]|\(\*|[*+?}][+]|\[\[[.=]")
"""What only one of both reads: look-around, references, verbs, possessive repeats, collating elements, Unicode."""
_NAMES: Final = "alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit"
_NAMED: Final = re.compile(rf"\[:\^?(?:{_NAMES}):\]")
_PARTS: Final = re.compile(rf"\\.|\[\^?\]?(?:\\.|{_NAMED.pattern}|[^\]\\])*\]|\{{(\d+)(?:,(\d*))?\}}|.")
"""An escape, a set of characters, how often the last part is repeated, or any other character."""
_LARGEST: Final = 32_000
"""Bytes of an expression once it is compiled, by an upper estimate: PCRE takes 65,535."""
_MOST_TIMES: Final = 1000
"""How often RE2 lets a part be repeated."""


def checked_expression(text: str) -> str:
    """Return an expression that PCRE reads as RE2 does; raise Unsupported for others."""
    if not text or len(text) > _LONGEST or not _ALLOWED.fullmatch(text):
        raise Unsupported(f"the regular expression {text[:80]!r} is empty, too long or not printable ASCII")
    if _FOREIGN.search(text) or any(_misnames(part[0]) for part in _PARTS.finditer(text)):
        raise Unsupported(f"the regular expression {text[:80]!r} uses what RE2 does not have")
    try:
        with warnings.catch_warnings():
            # Python warns of what may mean something else one day: `[[`, `--`, `&&` in a class.
            warnings.simplefilter("ignore", FutureWarning)
            re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unsupported(f"the regular expression {text[:80]!r} cannot be read: {error}") from error
    if _size(text) > _LARGEST:
        raise Unsupported(f"the regular expression {text[:80]!r} repeats too much")
    return text


def _misnames(part: str) -> bool:
    """Report whether a set of characters has the name of one that PCRE does not know, or that stands alone."""
    rest = _NAMED.sub("", part)
    return part.startswith("[") and ("[:" in rest or not rest.endswith("]"))


def _size(text: str) -> int:
    """Estimate the bytes that PCRE makes of an expression: a group that is repeated N times is there N times."""
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
