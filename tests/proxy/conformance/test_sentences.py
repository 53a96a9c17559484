"""docs/semantics.md and the tests tell of the same sentences. Needs no root: nothing is run."""

from pathlib import Path

from tests.proxy.conformance import modes
from tests.proxy.conformance.sentences import proven, written

HERE = Path(__file__).parent


def test_every_sentence_has_a_test_and_every_test_a_sentence() -> None:
    tests = proven(HERE)
    assert set(written()) - set(tests) == set(), "sentences that no test proves"
    assert set(tests) - set(written()) == set(), "tests of sentences that are not in the document"


def test_the_sentences_are_numbered_in_order() -> None:
    numbers = written()
    assert numbers == [f"S{number + 1}" for number in range(len(numbers))]
    assert numbers


def test_a_mode_is_excused_only_from_sentences_that_exist() -> None:
    for mode in (*modes.HERE, *modes.GUEST):
        assert set(mode.cannot) <= set(written()), f"mode {mode}"
        assert all(mode.cannot.values()), f"mode {mode} must say what is missing"
