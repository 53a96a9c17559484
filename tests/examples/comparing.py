"""Compares a command's output with a document: varying parts may differ, others must not.

`…` in a document stands for any text of a line; a line of `…` alone for any lines.
"""

import re
from collections.abc import Sequence
from typing import Final

_VOLATILE: Final = tuple(
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?", "TIME"),
        (r"\b(pid|process|kill) \d+", r"\1 PID"),
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b", "TOKEN"),
        (r"\bsha256:[0-9a-f]+…?", "HASH"),
        (r"\b10\.96\.(?!0\.)\d+\.\d+", "ALLOCATED"),
        (r"\b\d+(\.\d+)? (s|ms|min)\b", "DURATION"),
        (r"\b(\d+[hms])+\b(?!/)", "AGE"),
        (r"\bnode port \d+|:3[012]\d{3}\b", "NODEPORT"),
        (r"\bv?\d+\.\d+\.\d+\+vipwire\S*", "VERSION"),
    )
)
_NUMBER: Final = re.compile(r"\b\d+(\.\d+)?( ?%)?(?=\s|$)")
_ANY_LINES: Final = "…"


def differs(shown: Sequence[str], said: Sequence[str], *, numbers_vary: bool = False) -> str:
    """Describe the first difference; "" if equal."""
    wanted = [_plain(line, numbers_vary=numbers_vary) for line in shown if line.strip()]
    found = [_plain(line, numbers_vary=numbers_vary) for line in said if line.strip()]
    if numbers_vary and _ANY_LINES not in wanted:  # their order varies too
        wanted, found = sorted(wanted), sorted(found)
    if _agree(wanted, found):
        return ""
    return "\n".join(["the document shows:", *shown, "it said:", *said])


def _plain(line: str, *, numbers_vary: bool) -> str:
    for pattern, word in _VOLATILE:
        line = pattern.sub(word, line)
    if numbers_vary:
        line = _NUMBER.sub("N", line)
    return " ".join(line.split())


def _agree(wanted: Sequence[str], found: Sequence[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0] == _ANY_LINES:
        return any(_agree(wanted[1:], found[at:]) for at in range(len(found) + 1))
    return bool(found) and _line_agrees(wanted[0], found[0]) and _agree(wanted[1:], found[1:])


def _line_agrees(wanted: str, found: str) -> bool:
    pattern = ".*".join(re.escape(part.strip()) for part in wanted.split("…"))
    return re.fullmatch(pattern.replace(r"\ ", r"\s+"), found) is not None or wanted == found
