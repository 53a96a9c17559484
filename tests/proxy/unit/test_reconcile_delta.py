from vipwire.reconcile.delta import Delta, diff, patch


def test_a_difference_tells_what_to_add_to_change_and_to_remove_with_the_old_values() -> None:
    delta = diff({"same": 1, "other": 2, "gone": 3}, {"same": 1, "other": 5, "new": 4})
    assert delta == Delta({"new": 4}, {"other": (2, 5)}, {"gone": 3})
    assert len(delta) == 3
    assert str(delta) == "+1 ~1 -1"


def test_no_difference_is_false() -> None:
    assert not diff({"a": 1}, {"a": 1})
    assert diff({}, {"a": 1})


def test_a_value_that_looks_like_nothing_is_one() -> None:
    nothing: dict[str, int | None] = {"a": None}
    zero: dict[str, int | None] = {"a": 0}
    expected: Delta[str, int | None] = Delta({}, {"a": (None, 0)})
    assert diff(nothing, zero) == expected
    assert diff({}, nothing) == Delta(nothing)


def test_patching_leaves_the_original_alone() -> None:
    have = {"a": 1}
    assert patch(have, Delta({"b": 2}, {"a": (1, 3)})) == {"a": 3, "b": 2}
    assert have == {"a": 1}
