"""Finds paths that servers read in several ways. `haproxy.readings` denies these where it matters. Pure."""

import re
from typing import Final

CUT: Final = "(?:;|%3b|%3f|%23)"
"""The characters at which some servers cut a path, in any case of letters."""
REFUSED: Final = "|".join(
    (
        rf"(?:/|%2f)(?:\.|%2e){{1,2}}(?:/|%2f|{CUT}|$)",  # dot segments
        r"\\|%5c|%ef%bc%(?:8[ef]|bc)",  # a backslash; a dot, a slash and a backslash of full width
        r"%(?:[01][0-9a-f]|7f)",  # control characters
        r"%(?![0-9a-f]{2})|%25(?:[0-9a-f]{2}|u)",  # no valid encoding, and a double encoding
        r"%(?:3[0-9]|[46][1-9a-f]|[57][0-9a])",  # letters and digits, which no client needs to encode
        r"%(?:c[01]|e0%[89]|f0%8|f[5-9a-f])",  # invalid UTF-8
        rf"^(?:(?!{CUT}).)*+{CUT}.*/|(?:/|%2f)%2f|%2f/",
        rf"^(?=.*(?://|%2f)).*{CUT}|^(?=.*//).*%2f",
    )
)
"""A regular expression of paths with more than two readings, in any case of letters."""
may_be_misread: Final = re.compile(r"[;%\\]|//|/\.").search
"""Finds a part that every path with several readings has."""
_is_refused: Final = re.compile(REFUSED, re.IGNORECASE).search


def restructure_path(path: str) -> str:
    """Return a path as read by servers that merge slashes, decode %2F, or cut the path."""
    merged = re.sub("%2f", "/", re.sub("//+", "/", path), flags=re.IGNORECASE)
    return re.sub(f"{CUT}.*", "", merged, flags=re.IGNORECASE)


def find_other_reading(path: str) -> str | None:
    """Return the path that some servers read instead, mostly the same one; None for a path with further readings."""
    return None if _is_refused(path) else restructure_path(path)
