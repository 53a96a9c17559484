"""How hard the laws are tried, how a parallel session is shared out, and what each test finds as the first one did.

A hundred examples of each law; HYPOTHESIS_PROFILE=deep tries fifty times as many, HYPOTHESIS_PROFILE=quick always the
same fifteen.
"""

import asyncio
import inspect
import logging
import os
import signal
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import leftovers
from tests.shares import Shares, is_share, turn

# How long examples take says something of the machine and its load only.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("deep", settings.get_profile("default"), max_examples=5000)
settings.register_profile("quick", settings.get_profile("default"), max_examples=15, derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

OUTSIDE = frozenset(
    {*("tmp_path", "capfd", "capsys", "caplog"), *("asyncio", "signal", "socket", "ssl", "subprocess", "yaml")}
)
_LOGGERS = logging.getLogger(), logging.getLogger("vipwire")
_SIGNALS = signal.SIGHUP, signal.SIGINT, signal.SIGTERM


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """Share out what `make test` runs; `--dist` with another value than `loadscope` is a wish of its own."""
    return Shares(config, log) if config.getoption("dist") == "loadscope" else None


def is_outside(item: pytest.Item) -> bool:
    """Report whether a test meets files, processes, sockets or parsers: by its fixtures and its imports."""
    module = vars(getattr(item, "module", object))
    imported = {value.__name__ for value in module.values() if inspect.ismodule(value)}
    return not OUTSIDE.isdisjoint({*imported, *getattr(item, "fixturenames", ())})


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make what a test has printed and logged text that can be sent: a law may log surrogates, and UTF-8 has none."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    for item in items:
        if is_outside(item):
            item.add_marker(pytest.mark.outside)
    yield
    if is_share(config):
        items.sort(key=lambda item: turn(item.nodeid))


@pytest.fixture(scope="session", autouse=True)
def _swept(request: pytest.FixtureRequest) -> Iterator[None]:
    """Remove what killed runs have left, before tests that make namespaces of their own.

    At the end, no program of ours may be attached to the machine's own cgroup: it would be called for all sockets.
    """
    if not any(
        item.get_closest_marker("kernel") or item.get_closest_marker("conformance") for item in request.session.items
    ):
        yield
        return
    leftovers.sweep()
    before = leftovers.programs_of_the_machine()
    yield
    left = leftovers.programs_of_the_machine() - before
    for _ in range(100 * bool(left)):  # a test beside this one tries programs for a moment
        time.sleep(0.01)
        left &= leftovers.programs_of_the_machine()
    assert not left


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
