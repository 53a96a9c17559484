"""The collector rests until the first sync, and never looks again at what is there then."""

import gc
from collections.abc import Iterator

import pytest

from vipwire.process import cyclic_garbage


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector of the tests as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()
    gc.unfreeze()


def test_a_start_is_not_looked_through() -> None:
    cyclic_garbage.rest()
    assert not gc.isenabled()
    cyclic_garbage.look_rarely()
    assert (gc.isenabled(), gc.get_threshold()) == (True, cyclic_garbage.EVERY)
    assert gc.get_freeze_count() > 0


def test_who_has_not_rested_has_nothing_to_leave_out() -> None:
    frozen = gc.get_freeze_count()
    cyclic_garbage.look_rarely()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (frozen, cyclic_garbage.EVERY)
