"""A SIGHUP that comes while the proxy starts is not its end, and is not forgotten."""

import os
import signal

import pytest

from vipwire.process_lifecycle import early_signals
from vipwire.process_lifecycle.event_loop import Stop


@pytest.mark.parametrize("early", [True, False])
async def test_whoever_listens_is_told_of_it(*, early: bool) -> None:
    heard: list[str] = []
    early_signals.record_signals()
    if early:
        os.kill(os.getpid(), signal.SIGHUP)
    Stop(lambda: heard.append("hung up"))
    assert heard == ["hung up"] * early
