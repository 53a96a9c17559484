"""The release of a kernel, as numbers to compare."""

import os
import re
from typing import NamedTuple, Self

_RELEASE = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


class KernelRelease(NamedTuple):
    """The first numbers of a kernel's release."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" if self.patch else f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse uname(2)'s release (`6.1.0-21-amd64`). Raise ValueError if it does not begin with numbers."""
        match = _RELEASE.match(text)
        if match is None:
            raise ValueError(f"{text!r} does not begin with the numbers of a kernel release")
        return cls(int(match[1]), int(match[2]), int(match[3] or 0))

    @classmethod
    def running(cls) -> Self:
        return cls.parse(os.uname().release)
