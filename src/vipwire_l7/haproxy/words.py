r"""The only way to write a line of HAProxy's configuration.

A line is a text of ours with {} where values stand, and each value is a `Word`, which only the functions here make.
They know how HAProxy reads a word (configuration.txt 2.2): blanks end one, `#` begins a comment, quotes and `\\` have
their shell's meaning, `$` is a variable in double quotes. In single quotes nothing has a meaning but the quote, so
that is where text goes that is not made of the plain characters; a single quote stands in double ones between. `%`
begins a field in formats and is doubled there.
"""

import re
from collections.abc import Iterable
from typing import NewType

Word = NewType("Word", str)

_PLAIN = re.compile(r"[A-Za-z0-9_.:/@+,=*-]+")
_TEXT = re.compile(r"[ -~]*")
_LINE = re.compile(r"[ -~]+")


def plain(text: str | int) -> Word:
    """Write a name, a number, an address; raise ValueError for any other character."""
    written = str(text)
    if not _PLAIN.fullmatch(written):
        raise ValueError(f"{written[:80]!r} cannot stand in a configuration")
    return Word(written)


def quoted(text: str) -> Word:
    """Write printable ASCII, to be taken as it is."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text[:80]!r} cannot stand in a configuration")
    return Word("'" + text.replace("'", "'\"'\"'") + "'")


def literal(text: str) -> Word:
    """Write a text where HAProxy expects a format: nothing in it is a field."""
    return quoted(text.replace("%", "%%"))


def plains(texts: Iterable[str]) -> Word:
    """Write several plain words."""
    return Word(" ".join(plain(text) for text in texts))


def line(form: str, *values: Word, indent: int = 4) -> str:
    """Write one line: `form` is ours, and has a {} for each value."""
    written = " " * indent + form.format(*values)
    if not _LINE.fullmatch(written):
        raise ValueError(f"{written[:80]!r} is not one line")
    return written


def command_word(text: str) -> str:
    r"""Write a word of a runtime command (management.txt 9.3): `\\` takes the meaning from `;`, blanks and itself."""
    if not _LINE.fullmatch(text):
        raise ValueError(f"{text[:80]!r} cannot stand in a command")
    return re.sub(r"([\\; ])", r"\\\1", text)
