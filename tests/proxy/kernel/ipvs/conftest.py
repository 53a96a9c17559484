"""Fixtures of ipvs mode's own tests in a guest: one lab and one proxy for all."""

from collections.abc import Iterator

import pytest
from tests.proxy.kernel.ipvs.proxy import IpvsProxy, proxied

from vipwire_lab.cluster.cluster import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    with Lab() as built:
        yield built


@pytest.fixture(scope="session")
def shared(lab: Lab) -> Iterator[IpvsProxy]:
    with proxied(lab) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared: IpvsProxy) -> Iterator[IpvsProxy]:
    """The shared proxy: a test's Services are removed after it, and must leave nothing."""
    yield shared
    assert shared.forget() == []
