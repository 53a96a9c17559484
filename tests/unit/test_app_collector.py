"""The collector looks rarely while the proxy starts, and never again through what is there when it has started."""

import gc
from collections.abc import Iterator

import pytest

from vipwire.app import collector


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_it_looks_rarely_at_a_start_and_settles_behind_it() -> None:
    collector.begin()
    assert gc.get_threshold() == collector.STARTING
    assert gc.isenabled()
    values = [{"number": number} for number in range(1000)]
    collector.settle()
    assert gc.get_threshold() == collector.EVERY
    assert gc.get_freeze_count() > len(values)
