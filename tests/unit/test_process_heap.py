"""Freed memory is given back, also what lies below something that is still in use."""

import platform
import subprocess
import sys

import pytest

_HOLES = """
import os
from vipwire.process import heap

def held():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

blocks = [bytearray(2000) for _ in range(20_000)]
above = bytearray(2000)
del blocks
before = held()
heap.give_back()
print(before - held())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries keep less, and cannot be told")
def test_what_is_free_is_given_back() -> None:
    given = subprocess.run([sys.executable, "-c", _HOLES], check=True, capture_output=True, text=True).stdout
    assert int(given) > 20_000_000
