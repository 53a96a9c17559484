r"""Writes the lines of HAProxy's configuration. No other module does.

A line is a template with {} for values, and each value is a `Word`, which only the functions here make. They quote as
HAProxy reads a word (configuration.txt 2.2): blanks end one, `#` begins a comment, quotes and `\\` have their shell's
meaning, `$` is a variable in double quotes. In single quotes only the quote is special, so text with other than plain
characters goes there; a single quote goes between double ones. `%` begins a field in formats and is doubled there.
"""

import re
from collections.abc import Iterable
from typing import NewType

Word = NewType("Word", str)

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,=*-]+")
_TEXT = re.compile(r"[ -~]*")
_LINE = re.compile(r"[ -~]+")


def write_plain(text: str | int) -> Word:
    """Write a name, a number or an address; raise ValueError for any other character."""
    written = str(text)
    if not _PLAIN.fullmatch(written):
        raise ValueError(f"{written[:80]!r} cannot stand in a configuration")
    return Word(written)


def write_quoted(text: str) -> Word:
    """Write printable ASCII, quoted."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:80]!r} cannot stand in a configuration")
    return Word("'" + text.replace("'", "'\"'\"'") + "'")


def write_literal(text: str) -> Word:
    """Write a text for an option that takes a format: `%` is escaped."""
    return write_quoted(text.replace("%", "%%"))


def write_plain_words(texts: Iterable[str]) -> Word:
    return Word(" ".join(write_plain(text) for text in texts))


def write_line(form: str, *values: Word, indent: int = 4) -> str:
    """Write one line. `form` is a literal with a {} for each value."""
    written = " " * indent + form.format(*values)
    if not _LINE.fullmatch(written):
        raise ValueError(f"{written[:80]!r} is not one line")
    return written


def write_command_word(text: str) -> str:
    r"""Write a word of a runtime command (management.txt 9.3): `\\` escapes `;`, blanks and itself."""
    if not _LINE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} cannot stand in a command")
    return re.sub(r"([\\; ])", r"\\\1", text)
