"""Decides which paths servers read in several ways. `haproxy.readings` refuses these where it matters. Pure."""

import re
from typing import Final

CUT: Final = "(?:;|%3b|%3f|%23)"
"""Where some servers end a path, in any case of letters."""
REFUSED: Final = "|".join(
    (
        rf"(?:/|%2f)(?:\.|%2e){{1,2}}(?:/|%2f|{CUT}|$)",  # dot segments
        r"\\|%5c|%ef%bc%(?:8[ef]|bc)",  # a backslash; a dot, a slash and a backslash of full width
        r"%(?:[01][0-9a-f]|7f)",  # control characters
        r"%(?![0-9a-f]{2})|%25(?:[0-9a-f]{2}|u)",  # no encoding, and an encoded one
        r"%(?:3[0-9]|[46][1-9a-f]|[57][0-9a])",  # letters and digits, which no client needs to encode
        r"%(?:c[01]|e0%[89]|f0%8|f[5-9a-f])",  # no UTF-8
        rf"^(?:(?!{CUT}).)*+{CUT}.*/|(?:/|%2f)%2f|%2f/",
        rf"^(?=.*(?://|%2f)).*{CUT}|^(?=.*//).*%2f",
    )
)
"""A regular expression of paths with more than two readings, in any case of letters."""
may_be_misread: Final = re.compile(r"[;%\\]|//|/\.").search
"""Finds what all paths with several readings have."""
_is_refused: Final = re.compile(REFUSED, re.IGNORECASE).search


def restructured(path: str) -> str:
    """Write a path as servers read it that merge slashes, take %2F for one, or cut it."""
    merged = re.sub("%2f", "/", re.sub("//+", "/", path), flags=re.IGNORECASE)
    return re.sub(f"{CUT}.*", "", merged, flags=re.IGNORECASE)


def other_reading(path: str) -> str | None:
    """Return the path that some servers read instead: the same for most, None for a path with further readings."""
    return None if _is_refused(path) else restructured(path)
