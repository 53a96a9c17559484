"""Outlier ejection for all that may happen: never the last, longer each time, forgotten in the end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, Protocol
from vipwire.plan.ejection import (
    FORGET_SECONDS,
    EjectionPolicy,
    Ejections,
    EndpointKey,
    Outliers,
    Tally,
)

NAME = ObjectName("default", "web")
PORT = ServicePortName(NAME, "", Protocol.TCP)
ENDPOINTS = tuple(EndpointKey(Protocol.TCP, Address(bytes((10, 0, 0, last))), 80) for last in range(6))
policies = st.builds(EjectionPolicy, st.integers(1, 4), st.sampled_from([1.0, 30.0, 900.0]), st.integers(1, 100))
present = st.frozensets(st.sampled_from(ENDPOINTS), max_size=6)
tallies = st.dictionaries(st.sampled_from(ENDPOINTS), st.builds(Tally, st.booleans(), st.integers(0, 5)), max_size=6)
steps = st.lists(st.tuples(st.sampled_from([0.0, 1.0, 40.0, 400.0]), tallies, st.none() | present), max_size=30)


@given(policies, present, steps)
def test_never_the_last_and_nothing_is_left_behind(policy: EjectionPolicy, first: object, events: object) -> None:
    assert isinstance(first, frozenset)
    assert isinstance(events, list)
    ejections, now, endpoints = Ejections(), 0.0, first
    ejections.keep_service(NAME, policy, {PORT: first}, now)
    for later, told, others in events:
        now += later
        ejections.bring_back(now)
        before = set(ejections.list_ejections())
        ejections.take_tallies(told, now)
        fresh = set(ejections.list_ejections()) - before
        assert not fresh or len(ejections.list_ejections()) <= policy.compute_most_ejected(len(endpoints))
        if others is not None:
            endpoints = others
            assert ejections.keep_service(NAME, policy, {PORT: endpoints}, now) == {
                key for _, key in ejections.list_ejections()
            }
        out = {key for _, key in ejections.list_ejections()}
        assert out < endpoints or not out
        assert set(ejections.watched) == endpoints
        assert all(until > now for until in ejections.list_ejections().values())
        due = ejections.due()
        assert (due is None) == (not out)
    ejections.keep_service(NAME, None, {}, now)
    assert (ejections.watched, ejections.list_ejections(), ejections.due()) == ({}, {}, None)


@given(policies, st.integers(1, 12))
def test_each_time_in_a_row_is_as_long_or_longer_and_a_good_while_forgets(
    policy: EjectionPolicy, rounds: int
) -> None:
    outliers, now, times = Outliers(policy), 0.0, []
    bad, good = ENDPOINTS[:2]
    outliers.keep_endpoints((bad, good), now)
    for turn in range(rounds):
        took = outliers.take_tally(bad, Tally(failures=1 if turn else policy.after), now)
        assert took is not None
        times.append(took)
        now += took
        assert outliers.bring_back(now) == [bad]
    assert times == sorted(times)
    assert times[0] == policy.seconds
    assert all(later <= 2 * earlier for earlier, later in pairwise(times))
    assert outliers.take_tally(bad, Tally(failures=policy.after), now + FORGET_SECONDS + 1) == policy.seconds


@given(policies, st.lists(st.integers(0, 5), max_size=20))
def test_who_answers_in_between_stays(policy: EjectionPolicy, rows: object) -> None:
    assert isinstance(rows, list)
    outliers = Outliers(policy)
    outliers.keep_endpoints(ENDPOINTS, 0.0)
    for failures in rows:
        outliers.take_tally(ENDPOINTS[0], Tally(failures=min(failures, policy.after - 1)), 0.0)
        outliers.take_tally(ENDPOINTS[0], Tally(answered=True), 0.0)
    assert not outliers.list_ejected()
