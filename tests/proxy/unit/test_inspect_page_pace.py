"""How often the page looks at the kernel."""

from vipwire.inspect.page.look import CALM_SECONDS, LOOK_SECONDS, Pace


def test_the_first_look_is_at_once() -> None:
    assert Pace().is_reading_due(0.0, changed=False)


def test_a_change_is_looked_at_soon_and_calm_seldom() -> None:
    pace = Pace()
    pace.record_reading(0.0, 0.1)
    assert not pace.is_reading_due(0.1 + LOOK_SECONDS / 2, changed=True)
    assert pace.is_reading_due(0.1 + LOOK_SECONDS, changed=True)
    assert not pace.is_reading_due(0.1 + LOOK_SECONDS, changed=False)
    assert pace.is_reading_due(0.1 + CALM_SECONDS, changed=False)


def test_looks_that_take_long_take_a_fifth_of_the_time_at_most() -> None:
    pace = Pace()
    pace.record_reading(0.0, 4.0)
    assert not pace.is_reading_due(23.9, changed=True)
    assert not pace.is_reading_due(4.0 + CALM_SECONDS, changed=False)
    assert pace.is_reading_due(24.0, changed=True)
    assert pace.is_reading_due(24.0, changed=False)
