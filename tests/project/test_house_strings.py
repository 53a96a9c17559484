"""Names of modules in strings of tests, benchmarks and scripts, which no type checker reads, name what is there."""

import pkgutil
import re

from tests.project.test_house_rules import ROOT

NAME = r"vipwire(?:_(?:up|l7|lab))?(?:\.[A-Za-z_]\w*)+"
QUOTED = re.compile(rf'"({NAME})"')
IMPORT = re.compile(rf"\bfrom ({NAME}) import (\w+)|\bimport ({NAME})")
OF_FILES = re.compile(r"vipwire\.\w+|.*\.(?:json|service)")


def is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_modules_in_strings_are_there() -> None:
    places: dict[str, str] = {}
    for folder in ("tests", "bench", "scripts"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            named = [name for name in QUOTED.findall(text) if not OF_FILES.fullmatch(name)]
            named += [".".join(filter(None, found)) for found in IMPORT.findall(text)]
            places |= dict.fromkeys(named, str(path.relative_to(ROOT)))
    assert {name: place for name, place in places.items() if not is_there(name)} == {}
