"""Starts the guests of ipvs mode when the session begins, and has their verdicts asked for last.

A worker of a parallel session starts a guest when its verdict is asked for: see `tests/shares.py`.
"""

from collections.abc import Iterator, Sequence

import pytest
from tests.proxy.kernel.guests import SUITES, Guests, Suite
from tests.shares import is_share

from vipwire_lab import guest_kernel

_GUESTS = pytest.StashKey[Guests]()


def _suite_of(item: pytest.Item) -> Suite | None:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    found = params.get("suite")
    return found if isinstance(found, Suite) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _suite_of(item) is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    asked = {_suite_of(item) for item in session.items}
    a_share = is_share(session.config)
    if any(asked - {None}) and not (a_share or session.config.option.collectonly or guest_kernel.obstacle()):
        session.config.stash[_GUESTS] = _started(session.config, [suite for suite in SUITES if suite in asked])


def _started(config: pytest.Config, suites: Sequence[Suite]) -> Guests:
    """Start guests in which the order of the tests is this session's, so that it can be had again."""
    seed = getattr(config.option, "randomly_seed", None)
    return Guests(suites, () if seed is None else (f"--randomly-seed={seed}",))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _GUESTS in session.config.stash:
        session.config.stash[_GUESTS].close()


@pytest.fixture
def guests(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Guests]:
    """The guests that started with the session; or, in a worker, the one of this test, from now on."""
    if why := guest_kernel.obstacle():
        pytest.skip(f"ipvs mode is not tested: no kernel of its own can be booted: {why}")
    if _GUESTS in pytestconfig.stash:
        yield pytestconfig.stash[_GUESTS]
        return
    suite = _suite_of(request.node)
    started = _started(pytestconfig, [suite] if suite else SUITES)
    yield started
    started.close()
