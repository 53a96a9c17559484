"""Parts side by side: none ends another, and what cannot start says so plainly."""

import asyncio
import itertools

import pytest

from vipwire.errors import ConfigError, UnsupportedError, VipwireError, raise_ungrouped, told_plainly
from vipwire.process_lifecycle.supervision import Begun, Supervisor, shorten_error


async def test_a_part_that_fails_is_run_again_and_others_do_not_notice() -> None:
    turns = itertools.count()

    async def frail(_begun: Begun) -> None:
        if next(turns) < 5:
            raise ZeroDivisionError

    async def lasting(_begun: Begun) -> None:
        await asyncio.Event().wait()

    supervisor = Supervisor(first_pause=0.0)
    async with asyncio.TaskGroup() as tasks:
        other = tasks.create_task(supervisor.keep("other", lasting))
        await supervisor.keep("frail", frail)
        assert not other.done()
        assert dict(supervisor.failures) == {"frail": 5, "other": 0}
        assert supervisor.troubles() == {"other": "", "frail": ""}
        other.cancel()


async def test_a_part_that_keeps_failing_is_in_trouble_until_it_has_run_for_a_while() -> None:
    seen: list[str] = []
    go_on = asyncio.Event()

    async def part(_begun: Begun) -> None:
        if len(seen) < 2:
            seen.append(supervisor.troubles()["part"])  # it never lets the loop look at the clock before it fails
            raise OverflowError("too much")
        seen.append(supervisor.troubles()["part"])
        await go_on.wait()

    supervisor = Supervisor(first_pause=0.0, sound_after=0.001)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(supervisor.keep("part", part))
        async with asyncio.timeout(60):
            while len(seen) < 3 or supervisor.troubles()["part"]:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0)
        go_on.set()
    assert seen[0] == ""
    assert seen[1] == seen[2]
    assert seen[1].startswith("OverflowError: too much (test_process_supervision.py:")


def test_what_cannot_be_opened_at_the_start_is_the_operators_to_mend() -> None:
    async def taken(_begun: Begun) -> None:
        async with asyncio.TaskGroup():
            raise UnsupportedError("port 53 is taken")

    with pytest.raises(UnsupportedError, match="port 53 is taken"):
        asyncio.run(Supervisor().keep("dns", taken, opens=True))


def test_what_was_open_once_is_opened_again() -> None:
    turns = itertools.count()

    async def dns(begun: Begun) -> None:
        if (turn := next(turns)) == 0:
            begun()
        if turn < 3:
            raise UnsupportedError("the interface has gone")

    supervisor = Supervisor(first_pause=0.0)
    asyncio.run(supervisor.keep("dns", dns, opens=True))
    assert supervisor.failures["dns"] == 3


def test_a_bug_at_the_start_is_no_refusal() -> None:
    turns = itertools.count()

    async def dns(_begun: Begun) -> None:
        if not next(turns):
            raise IndexError

    asyncio.run(Supervisor(first_pause=0.0).keep("dns", dns, opens=True))


def test_what_an_operator_is_told_is_found_in_groups_of_nothing_else() -> None:
    first = ConfigError("first")
    nested = ExceptionGroup("", [ExceptionGroup("", [first]), UnsupportedError("second")])
    assert told_plainly(nested) is first
    assert told_plainly(VipwireError("x")) is not None
    assert told_plainly(ExceptionGroup("", [first, ValueError()])) is None
    assert told_plainly(ValueError()) is None
    assert shorten_error(nested) == "first"


def test_ungrouped_raises_the_operators_error_itself() -> None:
    with pytest.raises(ConfigError, match="first"), raise_ungrouped():
        raise ExceptionGroup("", [ConfigError("first")])
    with pytest.raises(ExceptionGroup), raise_ungrouped():
        raise ExceptionGroup("", [ConfigError("first"), ValueError()])
    with pytest.raises(UnsupportedError), raise_ungrouped():
        raise UnsupportedError("plain")
