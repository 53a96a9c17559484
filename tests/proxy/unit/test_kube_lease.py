"""A Lease: its content, when it expires, and that no two holders have it at once."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vipwire.kube.errors import ApiError
from vipwire.kube.lease import (
    LeaseHeldError,
    LeaseObserver,
    LeaseRequest,
    acquire_or_renew,
    build_lease,
    find_duration,
    find_holder,
    release,
    remove_holder,
    set_holder,
)

SECONDS = 15


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def seen(holder: str, version: str, seconds: object = SECONDS) -> dict[str, Any]:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    return {"metadata": {"resourceVersion": version}, "spec": spec}


def test_a_released_lease_has_expired_and_one_that_is_held_has_not() -> None:
    observer = LeaseObserver(SECONDS)
    assert observer.seconds_left("lease", {}, 0.0) == 0.0
    assert observer.seconds_left("lease", seen("", "1"), 0.0) == 0.0
    assert observer.seconds_left("lease", seen("other", "2"), 0.0) == SECONDS


def test_a_lease_expires_when_it_was_seen_unchanged_for_its_duration() -> None:
    observer = LeaseObserver()
    assert observer.seconds_left("lease", seen("other", "1"), 100.0)
    assert observer.seconds_left("lease", seen("other", "2"), 114.0)
    assert observer.seconds_left("lease", seen("other", "2"), 128.9)
    assert observer.seconds_left("lease", seen("other", "2"), 129.0) == 0.0


def test_leases_are_observed_by_their_names() -> None:
    observer = LeaseObserver()
    assert observer.seconds_left("first", seen("other", "1"), 0.0) == SECONDS
    assert observer.seconds_left("second", seen("other", "1"), 10.0) == SECONDS
    assert observer.seconds_left("first", seen("other", "1"), 10.0) == 5.0


def test_the_content_of_a_lease_that_changes_hands() -> None:
    first = build_lease("lease", "first", SECONDS, at(0.5))
    assert first["spec"] == {
        "holderIdentity": "first",
        "leaseDurationSeconds": SECONDS,
        "acquireTime": "1970-01-01T00:00:00.500000Z",
        "renewTime": "1970-01-01T00:00:00.500000Z",
        "leaseTransitions": 0,
    }
    renewed = set_holder(first, "first", SECONDS, at(9))
    assert renewed["spec"] == first["spec"] | {"renewTime": "1970-01-01T00:00:09.000000Z"}
    ended = remove_holder(renewed, at(10))
    assert (find_holder(ended), find_duration(ended, SECONDS), ended["spec"]["leaseTransitions"]) == ("", 1.0, 0)
    second = set_holder(ended, "second", SECONDS, at(11))
    assert (second["spec"]["leaseTransitions"], second["spec"]["acquireTime"][17:19]) == (1, "11")


@pytest.mark.parametrize("spec", [None, {}, {"leaseDurationSeconds": "x"}, {"leaseDurationSeconds": -1}])
def test_an_odd_lease_is_held_by_nobody_and_has_the_usual_duration(spec: object) -> None:
    assert find_holder({"spec": spec}) == ""
    assert find_duration({"spec": spec}, 7.0) == 7.0


class Server:
    """Keeps one Lease, and refuses a write to a state that has changed."""

    def __init__(self) -> None:
        self.value: dict[str, Any] | None = None
        self.version = 0

    async def create(self, value: dict[str, Any]) -> None:
        if self.value is not None:
            raise ApiError(409, "AlreadyExists", "")
        self._keep(value)

    async def update(self, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        if self.value is None:
            raise ApiError(404, "NotFound", "")
        self._keep(edit(self.value))

    def _keep(self, value: dict[str, Any]) -> None:
        self.version += 1
        self.value = value | {"metadata": value["metadata"] | {"resourceVersion": str(self.version)}}


@given(st.lists(st.floats(0, 40), max_size=8), st.floats(0, 40))
def test_two_never_hold_a_lease_at_once(renewals: list[float], later: float) -> None:
    """The first renews now and then; the second looks as often, and acquires the Lease as soon as it may."""

    async def run() -> None:
        server, first, second, now, renewed = Server(), LeaseObserver(), LeaseObserver(), 0.0, 0.0

        async def acquires(holder: str, observer: LeaseObserver) -> bool:
            request = LeaseRequest("lease", holder, SECONDS)
            try:
                await acquire_or_renew(server, request, observer, lambda: now, lambda: at(now))
            except LeaseHeldError:
                return False
            return True

        assert await acquires("first", first)
        assert not await acquires("second", second)
        for number, pause in enumerate((*renewals, later), 1):
            now += pause
            if await acquires("second", second):
                assert now - renewed >= SECONDS
                assert not await acquires("first", first)
                return
            if number <= len(renewals):
                assert await acquires("first", first)
                renewed = now
                assert not await acquires("second", second)

    asyncio.run(run())


async def test_a_lease_is_released_by_its_holder_alone() -> None:
    server, request = Server(), LeaseRequest("lease", "first", SECONDS, (("a", "b"),), transitions=1)
    await acquire_or_renew(server, request, LeaseObserver(), lambda: 0.0, lambda: at(0))
    assert server.value is not None
    assert server.value["metadata"]["labels"] == {"a": "b"}
    assert server.value["spec"]["leaseTransitions"] == 1
    with pytest.raises(LeaseHeldError):
        await release(server, "second", lambda: at(1))
    await release(server, "first", lambda: at(1))
    assert find_holder(server.value) == ""


def test_a_lease_that_another_creates_first_is_held() -> None:
    class Raced(Server):
        async def create(self, value: dict[str, Any]) -> None:
            del value
            raise ApiError(409, "AlreadyExists", "")

    with pytest.raises(LeaseHeldError):
        asyncio.run(
            acquire_or_renew(
                Raced(), LeaseRequest("lease", "me", SECONDS), LeaseObserver(), lambda: 0.0, lambda: at(0)
            )
        )
