"""The rules of the house, held over every module of the package. A rule that has to be broken is broken here, with
its reason, where everybody sees how many they are.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/vipwire"
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]
Function = ast.FunctionDef | ast.AsyncFunctionDef

BAD_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc)(_|\.|$)")
GETTERS_OF_OTHERS = {
    "get_command": "click's: the group that imports commands when they are used overrides it",
}
LONG_FUNCTIONS: dict[str, str] = {}
LONGEST_MODULE, LONGEST_FUNCTION = 400, 50
MOST_EXCEPTIONS = 5


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def long_functions(path: Path) -> set[str]:
    """Name the functions of a module that are too long."""
    where = path.relative_to(PACKAGE).as_posix()
    lengths = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno is not None}
    return {f"{where} {name}" for name, length in lengths.items() if length > LONGEST_FUNCTION}


def test_there_are_modules_to_hold_to_the_rules() -> None:
    assert len(MODULES) > 100


@pytest.mark.parametrize("path", MODULES, ids=NAMES)
def test_a_module(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    long = long_functions(path) - LONG_FUNCTIONS.keys()
    assert ast.get_docstring(tree(path)), "says what it decides"
    assert lines <= LONGEST_MODULE
    assert long == set(), f"longer than {LONGEST_FUNCTION} lines"
    assert not BAD_NAMES.search(str(path.relative_to(PACKAGE))), "is named for what it is"
    getters = {f.name for f in functions(path) if f.name.startswith("get_")}
    assert getters - GETTERS_OF_OTHERS.keys() == set(), "a function is named for what it does or gives"


def test_no_star_catches_a_group() -> None:
    """`raise` within `except*` makes a group again before Python 3.11.4, Debian's: `errors.ungrouped` does not."""
    found = [path.name for path in MODULES if any(isinstance(node, ast.TryStar) for node in ast.walk(tree(path)))]
    assert found == []


def test_exceptions_are_few_and_each_is_needed() -> None:
    found = {function.name for path in MODULES for function in functions(path)}
    found |= {name for path in MODULES for name in long_functions(path)}
    exceptions = GETTERS_OF_OTHERS | LONG_FUNCTIONS
    assert exceptions.keys() <= found
    assert len(exceptions) <= MOST_EXCEPTIONS


def areas() -> list[str]:
    """Name the areas: every folder of the package that has modules of its own."""
    folders = {path.parent for path in MODULES} - {PACKAGE, PACKAGE / "backends"}
    return sorted(folder.relative_to(PACKAGE).as_posix() for folder in folders)


@cache
def text_of_all_tests() -> str:
    """Give the source of all tests and of what they are made of."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py")))


@pytest.mark.parametrize("area", areas())
def test_an_area_has_tests(area: str) -> None:
    words = area.removeprefix("backends/").replace("/", "_")
    named = list((ROOT / "tests").glob(f"*/test_*{words}*.py"))
    assert named or f"vipwire.{area.replace('/', '.')}." in text_of_all_tests(), f"no test is of {area}"


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_no_test_mocks_or_is_left_out_without_a_reason() -> None:
    texts = {
        path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)
    }
    pattern = re.compile(
        r"unittest\.mock|MagicMock|mark\.(?:skip|xfail)\b(?!\([^)]*reason=)|^\s+pytest\.skip\(\)", re.MULTILINE
    )
    assert [str(path) for path, text in texts.items() if pattern.search(text)] == []


def test_no_layer_imports_one_above_it() -> None:
    """Who may know whom stands in `.importlinter`. In a process of its own: it sets up logging for itself."""
    command = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    checked = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
