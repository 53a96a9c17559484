"""Fixtures of the kernel tests. Starts the guests of ipvs mode with the session, and asks for their verdicts last.

A worker of a parallel session starts a guest when a test asks for its verdict: see `tests/shares.py`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fakes.own_network import own_network
from tests.proxy.kernel.ebpf_maps import own_folder, own_pins
from tests.proxy.kernel.guests import SUITES, Guests, Suite
from tests.shares import is_share

from vipwire.model.net import Family
from vipwire.modes.ebpf.pinned import NodePins
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
    if any(asked - {None}) and not (a_share or session.config.option.collectonly or guest_kernel.find_obstacle()):
        session.config.stash[_GUESTS] = _started(session.config, [suite for suite in SUITES if suite in asked])


def _started(config: pytest.Config, suites: Sequence[Suite]) -> Guests:
    """Start guests with the order of this session's tests, so that the order can be repeated."""
    seed = getattr(config.option, "randomly_seed", None)
    return Guests(suites, () if seed is None else (f"--randomly-seed={seed}",))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _GUESTS in session.config.stash:
        session.config.stash[_GUESTS].close()


@pytest.fixture
def guests(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Iterator[Guests]:
    """The guests of the session; in a worker, this test's guest, started now."""
    if why := guest_kernel.find_obstacle():
        pytest.skip(f"ipvs mode is not tested: no kernel of its own can be booted: {why}")
    if _GUESTS in pytestconfig.stash:
        yield pytestconfig.stash[_GUESTS]
        return
    suite = _suite_of(request.node)
    started = _started(pytestconfig, [suite] if suite else SUITES)
    yield started
    started.close()


@pytest.fixture(params=list(Family), ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    found: Family = request.param
    return found


@pytest.fixture
def network() -> Iterator[int]:
    """The descriptor of the test's own network namespace, in which it runs."""
    with own_network() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def cgroup() -> Iterator[Path]:
    with own_folder() as path:
        yield path


@pytest.fixture
def pins(cgroup: Path) -> Iterator[NodePins]:
    """A node's folder, in its own network namespace."""
    with own_pins(cgroup) as made:
        yield made
