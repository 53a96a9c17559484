"""Decides how commands are written that a person shall type next: as this program was called.

In a checkout's .venv the program is not in PATH. `vipwire lab exec` finds it all the same, and what is in sbin.
"""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

_LAB: Final = re.compile(r"\bvipwire (?=lab\b)")
_SYSTEM: Final = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")


def as_called(text: str) -> str:
    """Write `vipwire lab …` in a text as this program was called."""
    return _LAB.sub(lambda _: f"{_program()} ", text)


def _program() -> str:
    if shutil.which("vipwire"):
        return "vipwire"
    called = Path(sys.argv[0])
    return f"{sys.executable} -m vipwire" if called.name == "__main__.py" else sys.argv[0]


def search_path(path: str) -> str:
    """Give the PATH of a command in the lab: the caller's, then this program's folder, then the system's."""
    own = Path(sys.executable).parent
    return os.pathsep.join(dict.fromkeys([*filter(None, path.split(os.pathsep)), str(own), *_SYSTEM]))
