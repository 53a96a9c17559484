"""Each case of the Gateway API's conformance suite has a row with a test that speaks of it, or says why not."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("docs/gateway.md", "docs/gateway-conformance.md", "tests/l7/gateway/official_cases.tsv")
WITHOUT = ("no: ", "not asked ", "in part, ")
MODULES = {path.stem: path.read_text() for path in (ROOT / "tests").rglob("test_*gateway*.py")}


def rows() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the cases of each row, and what is said of them."""
    for line in (ROOT / "tests/l7/gateway/official_cases.tsv").read_text().splitlines()[1:]:
        cases, said = line.split("\t")
        yield tuple(cases.split(", ")), said


def defining(test: str) -> Iterator[str]:
    """Yield the modules that have a test."""
    for text in MODULES.values():
        if re.search(rf"\bdef {test}\b", text):
            yield text


def test_every_case_has_one_row() -> None:
    """The names are those of the suite's files; a new one is added here, and the table follows."""
    known = (ROOT / "tests/l7/gateway/official_cases.txt").read_text().split()
    assert sorted(case for cases, _ in rows() for case in cases) == known


@pytest.mark.parametrize(
    ("cases", "said"), tuple(rows()), ids=lambda each: each[0] if isinstance(each, tuple) else ""
)
def test_a_row_names_tests_that_speak_of_its_cases(cases: tuple[str, ...], said: str) -> None:
    named = re.findall(r"\btest_\w+", said)
    texts = [text for test in named for text in defining(test)]
    assert len(texts) == len(named), f"not there, or there twice: {named}"
    assert named or said.startswith(WITHOUT)
    spoken = "\n".join(texts)
    silent = [case for case in cases if not re.search(rf"\b{case}\b", spoken)]
    assert not named or not silent


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_tests_that_are_there(page: str) -> None:
    named = set(re.findall(r"\btest_\w+", (ROOT / page).read_text()))
    there = {name for text in MODULES.values() for name in re.findall(r"\bdef (test_\w+)", text)}
    assert named - there - MODULES.keys() == set()
