"""Algorithms and weights, before any kernel."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.spread import EVENLY, MAGLEV_SLOTS, Algorithm, Spread, fill_slots

LIMIT = 65534


def names(count: int) -> tuple[bytes, ...]:
    return tuple(bytes([10, 244, number // 250, number % 250, 31, 144]) for number in range(count))


def test_equal_targets_have_a_slot_each() -> None:
    assert fill_slots(EVENLY, "abc", names(3), LIMIT) == ("a", "b", "c")


def test_a_heavier_target_has_more_slots_and_they_lie_apart() -> None:
    assert fill_slots(Spread(weights=(3, 1, 1)), "abc", names(3), LIMIT) == ("a", "b", "a", "c", "a")


def test_weights_are_reduced_by_what_they_have_in_common() -> None:
    assert fill_slots(Spread(weights=(100, 50)), "ab", names(2), LIMIT) == ("a", "b", "a")


@given(st.lists(st.integers(1, 100), min_size=1, max_size=300))
def test_slots_never_exceed_the_limit_and_nobody_is_left_out(weights: list[int]) -> None:
    pool = tuple(range(len(weights)))
    dealt = fill_slots(Spread(weights=tuple(weights)), pool, names(len(weights)), 1000)
    assert len(dealt) <= 1000
    assert set(dealt) == set(pool)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 20, 30, 50])
def test_maglev_moves_at_most_one_nth_and_one_percent_when_one_of_n_goes(count: int) -> None:
    spread = Spread(Algorithm.MAGLEV)
    all_names = names(count)
    before = fill_slots(spread, all_names, all_names, LIMIT)
    for gone in range(min(count, 5)):
        rest = all_names[:gone] + all_names[gone + 1 :]
        after = fill_slots(spread, rest, rest, LIMIT)
        moved = sum(old != new for old, new in zip(before, after, strict=True)) / len(before)
        assert moved <= 1 / count + 0.01


def test_maglev_shares_follow_the_weights() -> None:
    shares = Counter(fill_slots(Spread(Algorithm.MAGLEV, (3, 1, 1)), "abc", names(3), LIMIT))
    assert sum(shares.values()) == MAGLEV_SLOTS
    assert shares["a"] == pytest.approx(MAGLEV_SLOTS * 3 / 5, rel=0.01)
    assert shares["b"] == pytest.approx(MAGLEV_SLOTS / 5, rel=0.01)
