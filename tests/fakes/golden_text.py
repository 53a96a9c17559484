"""Compares with recorded text: `UPDATE_GOLDEN=1 pytest …` records the current text."""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def matches_golden(name: str, text: str) -> bool:
    """Compare a text with the recorded one; record it if the variable is set."""
    path = _FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8") == text
