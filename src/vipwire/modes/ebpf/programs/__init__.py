"""The programs: their source in C, and the object that is made of it by the Makefile beside it."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from vipwire.linux.bpf.elf import ObjectFile, read_object


class Build(NamedTuple):
    """An object of the programs, and a number that no other has."""

    object: ObjectFile
    number: int


@cache
def build() -> Build:
    """Read the object."""
    data = (files(__name__) / "vipwire.o").read_bytes()
    return Build(read_object(data), int.from_bytes(hashlib.sha256(data).digest()[:7]))
