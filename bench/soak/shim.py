"""Faults inside a process: `shim.c`, compiled on demand, and the file that controls it."""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple, Self

_SOURCE = Path(__file__).with_name("shim.c")
_LAYOUT = struct.Struct("=IIIIqIIII")


def compiled(folder: Path) -> Path | None:
    """Compile the shim into a folder; None without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Struck(NamedTuple):
    """The number of failed calls: receives that lost a datagram, interrupted ones, and sends."""

    overflowed: int
    interrupted: int
    not_sent: int


class Faults:
    """The faults of processes started with `environment`."""

    def __init__(self, folder: Path, name: str, library: Path | None, seed: int) -> None:
        self._path, self._library, self._seed = folder / f"{name}.faults", library, seed & 0xFFFFFFFF
        self._path.write_bytes(bytes(_LAYOUT.size))
        with self._path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._clock = 0
        self.netlink()

    @property
    def possible(self) -> bool:
        return self._library is not None

    @property
    def environment(self) -> dict[str, str]:
        """The environment that loads the shim."""
        if self._library is None:
            return dict(os.environ)
        return {**os.environ, "LD_PRELOAD": str(self._library), "SOAK_FAULTS": str(self._path)}

    def netlink(self, overflow: int = 0, interrupt: int = 0, unsent: int = 0) -> None:
        """Set how many of a thousand calls fail."""
        self._mapped[:16] = struct.pack("=IIII", overflow, interrupt, unsent, self._seed)

    def clock(self, ahead: int) -> None:
        """Set how many seconds the clock is ahead."""
        self._mapped[16:24] = struct.pack("=q", ahead)

    @property
    def struck(self) -> Struck:
        return Struck(*_LAYOUT.unpack(self._mapped[:])[5:8])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mapped.close()
