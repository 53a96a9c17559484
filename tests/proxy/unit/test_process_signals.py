"""A SIGHUP that comes while the proxy starts is not its end, and is not forgotten."""

import os
import signal
from collections.abc import Iterator

import pytest

from vipwire.process_lifecycle import early_signals
from vipwire.process_lifecycle.event_loop import Stop


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """Leave nothing remembered."""
    yield
    early_signals.take_recorded_sighup()


def test_one_that_came_before_counts_once() -> None:
    early_signals.remember()
    os.kill(os.getpid(), signal.SIGHUP)
    assert early_signals.take_recorded_sighup()
    assert not early_signals.take_recorded_sighup()


@pytest.mark.parametrize("early", [True, False])
async def test_whoever_listens_is_told_of_it(*, early: bool) -> None:
    heard: list[str] = []
    early_signals.remember()
    if early:
        os.kill(os.getpid(), signal.SIGHUP)
    Stop(lambda: heard.append("hung up"))
    assert heard == ["hung up"] * early
