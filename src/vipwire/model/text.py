r"""Text that somebody else wrote, made safe to print: an object's name must never move an operator's cursor. Pure.

Control characters, and those that turn the direction of writing or have no width, become escapes as in JSON
(`\u001b`, `\n`). So the result may stand inside a JSON string, and it is what the log, Events and commands print.
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
