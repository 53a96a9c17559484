"""Connects docs/semantics.md with the tests: its sentences, and the tests that prove each."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "semantics.md"
_NUMBER = re.compile(r"^- \*\*(S\d+)\*\* ", re.MULTILINE)


def sentence(*numbers: str) -> pytest.MarkDecorator:
    """Mark a test, or one case of it, as proof of these sentences."""
    return pytest.mark.sentence(*numbers)


def sentences_of(item: pytest.Item) -> Iterator[str]:
    """Yield the sentences that a collected test proves."""
    for mark in item.iter_markers("sentence"):
        yield from mark.args


def written() -> list[str]:
    return _NUMBER.findall(DOCUMENT.read_text(encoding="utf-8"))


def check_asked(numbers: Iterable[str], asked: int) -> None:
    """Fail if a test that proves sentences has not asked `explain`."""
    proved = sorted(numbers)
    assert asked or not proved, f"{proved}: explain was not asked"


def proven(folder: Path) -> dict[str, set[str]]:
    """Read which sentences a folder's test modules name, and in which files, without importing them."""
    found: dict[str, set[str]] = {}
    for path in sorted(folder.glob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sentence":
                for argument in node.args:
                    found.setdefault(ast.literal_eval(argument), set()).add(path.name)
    return found
