r"""Integers from text of clients and operators, and text made safe to print. Pure.

An object's name must not control an operator's terminal. Control characters, and those that change the writing
direction or have no width, become JSON escapes (`\u001b`, `\n`). The log, Events, commands and JSON strings contain
the result.
"""

import re
from collections.abc import Iterable
from typing import Final

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def escape_invisible(text: str) -> str:
    """Escape every character that controls a terminal or is invisible."""
    return _HIDDEN.sub(_escape_match, text) if _HIDDEN.search(text) else text


def visible_lines(text: str) -> str:
    """The same, but keep line breaks: for vipwire's own text with parts of others."""
    return "\n".join(map(escape_invisible, text.split("\n")))


def _escape_match(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def find_nearest(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the known word closest to `word`, "" if no likeness (0 to 1) reaches `least`."""
    import difflib  # noqa: PLC0415  # only for a mistake

    return next(iter(difflib.get_close_matches(word, list(known), 1, least)), "")


_MOST_DIGITS: Final = 20


def whole_number(text: str, least: int, most: int) -> int | None:
    """Read ASCII digits as an integer within bounds, None for any other text.

    int() also accepts digits of other scripts, signs and underscores, and raises ValueError for 4,301 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None


def port_number(text: str) -> int | None:
    """Read a port, 1 to 65535."""
    return whole_number(text, 1, 65535)
