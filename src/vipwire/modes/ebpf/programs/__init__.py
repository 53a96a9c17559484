"""The programs: their source in C, and the object file that the Makefile beside it builds."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from vipwire.linux.bpf.elf import ObjectFile, read_object


class Build(NamedTuple):
    """An object file of the programs, and its unique number."""

    object: ObjectFile
    number: int


@cache
def build() -> Build:
    data = (files(__name__) / "vipwire.o").read_bytes()
    return Build(read_object(data), int.from_bytes(hashlib.sha256(data).digest()[:7]))
