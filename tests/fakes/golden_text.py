"""Comparison with recorded text: `UPDATE_GOLDEN=1 pytest …` records what is there now."""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def matches_golden(name: str, text: str) -> bool:
    """Tell whether a text is the one that was recorded under a name; record it where that is asked for."""
    path = _FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    return path.read_text(encoding="utf-8") == text
