"""Accepts regular expressions that HAProxy's PCRE reads as users mean them: what it has in common with RE2. Pure."""

import re
from typing import Final

from vipwire.gateway.plan.unsupported import Unsupported

_LONGEST: Final = 1024
_ALLOWED: Final = re.compile(r"[ -~]+")
_FOREIGN: Final = re.compile(r"\(\?(?!:)|\\[1-9gkQEXRKGCN]|\(\*|[*+?}][+]|\[\[[.=]")
"""What PCRE reads and RE2 does not: look-around, references, verbs, possessive repeats, collating elements."""


def checked_expression(text: str) -> str:
    """Return an expression that PCRE reads as RE2 does; raise Unsupported for others."""
    if not text or len(text) > _LONGEST or not _ALLOWED.fullmatch(text):
        raise Unsupported(f"the regular expression {text[:80]!r} is empty, too long or not printable ASCII")
    if _FOREIGN.search(text):
        raise Unsupported(f"the regular expression {text[:80]!r} uses what RE2 does not have")
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise Unsupported(f"the regular expression {text[:80]!r} cannot be read: {error}") from error
    return text
