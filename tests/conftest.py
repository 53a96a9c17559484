"""How hard the laws are tried, and what each test finds as the first one did: loggers and signals.

A hundred examples of each law, and fifty times as many with HYPOTHESIS_PROFILE=deep.
"""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long examples take says something of the machine and its load only.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

_LOGGERS = logging.getLogger(), logging.getLogger("vipwire")
_SIGNALS = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Take back what a command that runs in this process does to the process: its logging, its signal handlers."""
    levels = [logger.level for logger in _LOGGERS]
    handlers = [tuple(logger.handlers) for logger in _LOGGERS]
    before = [signal.getsignal(number) for number in _SIGNALS]
    yield
    for logger, level, known in zip(_LOGGERS, levels, handlers, strict=True):
        logger.setLevel(level)
        for handler in set(logger.handlers) - set(known):
            logger.removeHandler(handler)
    for number, handled in zip(_SIGNALS, before, strict=True):
        if signal.getsignal(number) is not handled:
            signal.signal(number, handled)
