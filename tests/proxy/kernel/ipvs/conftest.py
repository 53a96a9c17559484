"""Fixtures of ipvs mode's own tests, which are run in a guest: one lab and one proxy for all of them."""

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
    """The proxy that all tests share: what a test has put goes with it, and leaves nothing behind."""
    yield shared
    assert shared.forget() == []
