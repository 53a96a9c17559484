"""The collector rests until the first sync, and never looks again at what is there then. Free pages go back."""

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from vipwire.process_lifecycle import cyclic_garbage


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """Leave the collector of the tests as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.enable()
    gc.unfreeze()


def test_a_start_is_not_looked_through() -> None:
    cyclic_garbage.disable_collection()
    assert not gc.isenabled()
    cyclic_garbage.collect_rarely()
    assert (gc.isenabled(), gc.get_threshold()) == (True, cyclic_garbage.EVERY)
    assert gc.get_freeze_count() > 0


def test_who_has_not_rested_has_nothing_to_leave_out() -> None:
    frozen = gc.get_freeze_count()
    cyclic_garbage.collect_rarely()
    assert (gc.get_freeze_count(), gc.get_threshold()) == (frozen, cyclic_garbage.EVERY)


_HOLES = """
import os, sys
from vipwire.process_lifecycle import cyclic_garbage

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1:]:
    cyclic_garbage.limit_heap()
before = held()
for _ in range(2):  # the first makes the C library keep blocks of this size
    blocks = [bytearray(1 << 20) for _ in range(20)]
    above = [bytearray(100_000) for _ in range(9)]
    del blocks
print(held() - before)
"""


def kept(*words: str) -> int:
    return int(subprocess.run([sys.executable, "-c", _HOLES, *words], check=True, capture_output=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep less, and cannot be told")
def test_a_limited_heap_keeps_less() -> None:
    assert kept("limited") < kept() - 10_000_000
