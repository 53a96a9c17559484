"""Faults inside of a process: `shim.c`, compiled when it is needed, and the file by which it is told what to do."""

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
    """Compile the shim into a folder; None where this machine has no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    library = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(_SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


class Struck(NamedTuple):
    """How many calls have gone wrong: receipts that lost a datagram, interrupted ones, and sending."""

    overflowed: int
    interrupted: int
    not_sent: int


class Faults:
    """What is to go wrong in the processes that are started with `environment`."""

    def __init__(self, folder: Path, name: str, library: Path | None, seed: int) -> None:
        self._path, self._library, self._seed = folder / f"{name}.faults", library, seed & 0xFFFFFFFF
        self._path.write_bytes(bytes(_LAYOUT.size))
        with self._path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._clock = 0
        self.netlink()

    @property
    def possible(self) -> bool:
        """Whether there is a shim."""
        return self._library is not None

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that can be struck."""
        if self._library is None:
            return dict(os.environ)
        return {**os.environ, "LD_PRELOAD": str(self._library), "SOAK_FAULTS": str(self._path)}

    def netlink(self, overflow: int = 0, interrupt: int = 0, unsent: int = 0) -> None:
        """From now on so many of a thousand calls go wrong."""
        self._mapped[:16] = struct.pack("=IIII", overflow, interrupt, unsent, self._seed)

    def clock(self, ahead: int) -> None:
        """From now on the clock is so many seconds ahead."""
        self._mapped[16:24] = struct.pack("=q", ahead)

    @property
    def struck(self) -> Struck:
        """What has gone wrong so far."""
        return Struck(*_LAYOUT.unpack(self._mapped[:])[5:8])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._mapped.close()
