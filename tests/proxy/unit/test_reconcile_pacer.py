"""When a sync is due, as tables of what happens at which second."""

import pytest

from vipwire.reconcile.pacer import Pacer


def pacer(minimum: float = 0.0, period: float = 30.0) -> Pacer:
    """Make a pacer that has done its first check at second 0."""
    made = Pacer(minimum, period)
    made.record_success(0.0)
    made.record_check(0.0, 0.0)
    return made


def test_at_start_everything_is_due() -> None:
    fresh = Pacer(1.0, 30.0)
    assert fresh.due(5.0, pending=False) == 0
    assert fresh.check_due(5.0)
    assert not fresh.retry_due(5.0)


def test_without_a_minimum_a_change_is_due_at_once() -> None:
    assert pacer().due(0.0, pending=True) == 0


@pytest.mark.parametrize(("now", "wait"), [(10.0, 1.0), (10.25, 0.75), (11.0, 0.0), (20.0, 0.0)])
def test_the_minimum_counts_from_the_end_of_a_sync_to_the_start_of_the_next(now: float, wait: float) -> None:
    made = pacer(minimum=1.0, period=100.0)
    made.record_success(10.0)
    assert made.due(now, pending=True) == wait


@pytest.mark.parametrize(("now", "wait"), [(0.0, 30.0), (12.0, 18.0), (30.0, 0.0), (99.0, 0.0)])
def test_without_a_change_the_next_check_is_due_after_the_period(now: float, wait: float) -> None:
    made = pacer()
    assert made.due(now, pending=False) == wait
    assert made.check_due(now) is (wait == 0)


@pytest.mark.parametrize("took", [0.001, 1.0, 1.5, 2.0, 60.0])
def test_checks_take_at_most_a_twentieth_of_the_time(took: float) -> None:
    made, now, spent = pacer(), 0.0, 0.0
    for _ in range(50):
        now += made.due(now, pending=False) + took
        spent += took
        made.record_check(now, took)
    assert spent / now <= 0.05


def test_another_pace_counts_at_once_and_never_puts_a_check_off() -> None:
    made = pacer(period=3600.0)
    made.become(0.5, 10.0, now=100.0)
    assert made.due(100.0, pending=False) == 10.0
    made.become(0.5, 3600.0, now=105.0)
    assert made.due(105.0, pending=False) == 5.0
    made.record_success(110.0)
    assert made.due(110.0, pending=True) == 0.5


def test_tries_after_failures_are_twice_as_far_apart_each_time_up_to_the_period() -> None:
    made, now, waits = pacer(period=2.0), 0.0, []
    for _ in range(7):
        made.record_failure(now, blocked=True)
        waits.append(round(made.due(now, pending=True), 6))
        now += waits[-1]
        assert made.retry_due(now)
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_a_thousand_failures_are_no_overflow() -> None:
    made = pacer(period=2.0)
    for second in range(1000):
        made.record_failure(float(second), blocked=False)
    assert made.due(999.0, pending=True) == 0
    assert not made.retry_due(1000.9)
    assert made.retry_due(1001.0)


def test_after_a_success_the_first_failure_waits_short_again() -> None:
    made = pacer()
    for second in range(5):
        made.record_failure(float(second), blocked=True)
    made.record_success(5.0)
    assert not made.retry_due(1000.0)
    made.record_failure(6.0, blocked=True)
    assert made.due(6.0, pending=True) == pytest.approx(0.1)


def test_what_is_blocked_waits_for_the_retry_with_new_work_and_checks() -> None:
    made = pacer(period=1.0)
    made.record_check(0.0, 0.0)
    for _ in range(4):
        made.record_failure(10.0, blocked=True)
    assert made.due(10.0, pending=True) == pytest.approx(0.8)
    assert not made.check_due(10.0)
    made.record_success(10.8)
    assert made.check_due(10.8)


def test_what_is_isolated_does_not_keep_new_work_waiting() -> None:
    made = pacer()
    made.record_failure(10.0, blocked=False)
    assert made.due(10.0, pending=True) == 0
    assert made.due(10.0, pending=False) == pytest.approx(0.1)
    assert not made.retry_due(10.0)
    assert made.retry_due(10.2)


def test_a_retry_respects_the_minimum() -> None:
    made = pacer(minimum=1.0)
    made.record_failure(10.0, blocked=True)
    assert made.due(10.0, pending=True) == 1.0


@pytest.mark.parametrize("minimum", [0.0, 1.0])
def test_nothing_is_due_at_once_again_after_any_action(minimum: float) -> None:
    made = pacer(minimum)
    now = 30.0
    made.record_check(now, 0.0)
    assert made.due(now, pending=False) > 0
    made.record_failure(now, blocked=True)
    assert made.due(now, pending=True) > 0
    made.record_failure(now, blocked=False)
    assert made.due(now, pending=False) > 0
    made.record_success(now)
    assert made.due(now, pending=False) > 0


def alarmed(made: Pacer, now: float, took: float = 0.001) -> float:
    """Raise an alarm, check when the pacer asks for it, and return the wait."""
    made.alarm(now)
    wait = made.due(now, pending=False)
    made.record_check(now + wait, took)
    return wait


def test_the_kernel_is_checked_at_once_after_an_alarm_and_ever_more_rarely_after_many() -> None:
    made, now, waits = pacer(period=2.0), 100.0, []
    for _ in range(8):
        waits.append(round(alarmed(made, now), 3))
        now += waits[-1]
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert alarmed(made, now + 1.9) == pytest.approx(0.1)
    assert alarmed(made, now + 10.0) == 0.0


def test_checks_by_alarms_take_a_twentieth_of_the_time_unless_that_exceeds_the_period() -> None:
    made = pacer()
    assert [alarmed(made, now, took=0.5) for now in (100.0, 100.0)] == [0.0, 10.0]
    assert alarmed(made, 110.0, took=60.0) == 20.0
    assert alarmed(made, 131.0) == 29.0


def test_many_alarms_before_a_check_are_one() -> None:
    made = pacer()
    assert [made.alarm(10.0), made.alarm(10.0), made.alarm(10.1)] == [True, False, False]
    made.record_check(11.0, 0.0)
    assert made.due(11.0, pending=False) == 30.0


def test_who_relies_on_the_kernel_checks_once_and_then_only_after_alarms() -> None:
    made = pacer()
    made.rely(5.0)
    assert made.due(5.0, pending=False) == 0.0
    made.record_check(5.0, 0.0)
    assert made.due(5.0, pending=False) == float("inf")
    assert alarmed(made, 1000.0) == 0.0
    assert made.due(1000.0, pending=False) == float("inf")
