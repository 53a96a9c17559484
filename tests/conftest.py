"""Settings of hypothesis, sharing of a parallel session, and the same initial state for each test.

A hundred examples of each law; HYPOTHESIS_PROFILE=deep runs fifty times as many, HYPOTHESIS_PROFILE=quick always the
same fifteen.
"""

import asyncio
import functools
import inspect
import logging
import os
import signal
import time
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests import leftovers
from tests.shares import Shares, is_share, turn

# An example's duration depends on the machine and its load only.
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
    """Distribute the tests of `make test`; a `--dist` other than `loadscope` has its own scheduler."""
    return Shares(config, log) if config.getoption("dist") == "loadscope" else None


def is_outside(item: pytest.Item) -> bool:
    """Report whether a test uses files, processes, sockets or parsers, by its fixtures and imports."""
    return imports_outside(getattr(item, "module", None)) or not OUTSIDE.isdisjoint(getattr(item, "fixturenames", ()))


@functools.cache
def imports_outside(module: ModuleType | None) -> bool:
    held = vars(module).values() if module else ()
    return not OUTSIDE.isdisjoint(value.__name__ for value in held if inspect.ismodule(value))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a test's output encodable: a law may log surrogates, which UTF-8 lacks."""
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
    """Remove leftovers of killed runs before tests that make namespaces.

    At the end, no vipwire program may be attached to the machine's root cgroup: the kernel would call it for all
    sockets.
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
    for _ in range(100 * bool(left)):  # a concurrent test attaches programs briefly
        time.sleep(0.01)
        left &= leftovers.programs_of_the_machine()
    assert not left


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Undo changes of this process by a command that runs in it: logging, signal handlers."""
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
