r"""Text of clients and operators: the whole numbers in it, and the text made safe to print. Pure.

An object's name must never move an operator's cursor. Control characters, and those that turn the direction of
writing or have no width, become escapes as in JSON (`\u001b`, `\n`). The result may stand inside a JSON string: the
log, Events and commands print it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

_HIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str) -> str:
    """Write every character that acts on a terminal, or that cannot be seen, as an escape."""
    return _HIDDEN.sub(_escape, text) if _HIDDEN.search(text) else text


def visible_lines(text: str) -> str:
    """Do the same and keep line breaks, where the text is ours and only parts of it are somebody's."""
    return "\n".join(map(visible, text.split("\n")))


def visible_document(value: Any) -> Any:
    """Do the same for every string in a document: keys, values, items of lists."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, Mapping):
        return {visible_document(key): visible_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [visible_document(item) for item in value]
    return value


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    return _SHORT.get(character) or f"\\u{ord(character):04x}"


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the known word that is most like a word, "" if the likeness (0 to 1) of none reaches `least`."""
    import difflib  # noqa: PLC0415  # only for a mistake

    return next(iter(difflib.get_close_matches(word, list(known), 1, least)), "")


_MOST_DIGITS: Final = 20


def whole_number(text: str, least: int, most: int) -> int | None:
    """Read ASCII digits as a number between bounds, None for any other text.

    Python's int() reads digits of every script, signs and underscores, and raises ValueError for 4,301 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None


def port_number(text: str) -> int | None:
    """Read a port, 1 to 65535."""
    return whole_number(text, 1, 65535)
