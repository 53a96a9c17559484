"""The paths of a packet become one walk: shares, steps told once, and paths that end otherwise told apart."""

from fractions import Fraction

import pytest
from tests.fakes.values import ip

from vipwire.reconcile.explainer import Path, merge
from vipwire.reconcile.steps import Effect, End, ObjectState, Step, Verdict, compare_object

HALF = Fraction(1, 2)


def path(steps: str, target: str = "", **more: object) -> Path:
    made = Path([Step("", name) for name in steps], target=(ip(target), 80) if target else None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def told(*paths: Path) -> str:
    """Join the objects' names; `+N` for N more, `!` before a path that ends otherwise."""
    words = []
    for step in merge(paths).steps:
        by_verdict = {each.verdict: each.detail for each in step.effects}
        more = by_verdict.get(Verdict.MORE)
        words.append("!" if Verdict.DIVERGE in by_verdict else f"+{more}" if more else step.object)
    return "".join(words)


def test_shares_add_up_and_a_path_that_leads_nowhere_has_its_own() -> None:
    found = merge(
        [
            path("ab", "10.0.0.1", share=HALF, masqueraded=True),
            path("ac", "10.0.0.2", share=HALF / 2),
            path("ad", share=HALF / 2),
        ]
    )
    assert found.end is End.ANSWERED
    assert found.shares == {(ip("10.0.0.1"), 80): HALF, (ip("10.0.0.2"), 80): HALF / 2, None: HALF / 2}
    assert found.masqueraded == {ip("10.0.0.1")}


@pytest.mark.parametrize(
    ("paths", "end"),
    [
        ([path("a")], End.UNTOUCHED),
        ([path("a", end=End.DROPPED)], End.DROPPED),
        ([path("a", "10.0.0.1", end=End.DROPPED)], End.DROPPED),
        ([path("a", "10.0.0.1", uncertain=True), path("b", "10.0.0.2")], End.UNKNOWN),
        ([path("a", end=End.REJECTED), path("b", "10.0.0.2")], End.ANSWERED),
    ],
)
def test_the_end_is_that_of_the_paths(paths: list[Path], end: End) -> None:
    assert merge(paths).end is end


@pytest.mark.parametrize(
    ("ways", "steps"),
    [
        (["abz"], "abz"),
        (["abz", "acz", "adz"], "abcdz"),
        (["aBbz", "aCcz"], "aBbCcz"),
        (["abmez", "acmfz"], "abcmefz"),
        (["az", "abz"], "abz"),
        (["abz", "az"], "abz"),
        ([f"a{name}z" for name in "bcdef"], "abcdefz"),
        ([f"a{name}z" for name in "bcdefgh"], "abcde+3z"),
    ],
)
def test_equal_steps_are_told_once_and_own_ones_in_the_order_of_paths(ways: list[str], steps: str) -> None:
    assert told(*(path(way, "10.0.0.1") for way in ways)) == steps


def test_a_path_that_ends_otherwise_is_told_behind_all_others_with_its_share() -> None:
    lost = path("axy", share=Fraction(1, 4))
    assert told(lost, path("abz", "10.0.0.1"), path("acz", "10.0.0.2")) == "abcz!xy"
    (mark,) = (step for step in merge([lost, path("abz", "10.0.0.1")]).steps if Verdict.DIVERGE in step.verdicts)
    assert (mark.object, mark.state) == ("25 % of new connections", ObjectState.DIFFERENT)


def test_a_step_in_words() -> None:
    step = Step("nat PREROUTING", "A", "-j B", effects=(Effect(Verdict.MARK, "0x1"), Effect(Verdict.GOTO, "B")))
    assert (step.place, step.effect) == ("nat PREROUTING: A", "sets the mark 0x1, goes to B")
    assert Step("", "chain a", state=ObjectState.MISSING).effect == "does not exist"
    assert Step("", "chain a", "drop", ObjectState.MISSING).effect == "is missing here"
    assert {each for each in Verdict if each.end} == {Verdict.DROP, Verdict.REJECT, Verdict.RESET}


def test_the_state_of_an_object() -> None:
    observed, wanted = {"same": 1, "other": 1, "surplus": 1}, {"same": 1, "other": 2, "missing": 1}
    assert [compare_object(key, observed, wanted).name for key in ("same", "other", "surplus", "missing")] == [
        "PLANNED",
        "DIFFERENT",
        "FOREIGN",
        "MISSING",
    ]
