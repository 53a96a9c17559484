"""Lets msgspec be imported without typing_extensions, which costs as much to import as ten modules of ours.

msgspec takes three names from it where it is installed, and else from Python's own `typing`: they are the same in the
versions of Python that vipwire runs in.
"""

import sys
from importlib import import_module
from typing import Any, Final

_EXTENSIONS: Final = "typing_extensions"


def prepare() -> None:
    """Import msgspec as if typing_extensions were not installed. Call it before anything has imported either."""
    modules: dict[str, Any] = sys.modules
    if _EXTENSIONS in modules or "msgspec" in modules:
        return
    modules[_EXTENSIONS] = None  # Python's way to say that there is no such module
    try:
        import_module("msgspec")
    finally:
        del modules[_EXTENSIONS]
