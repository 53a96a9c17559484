"""The rules of the house, held over every module of the package. A rule that has to be broken is broken here, with
its reason, where everybody sees how many they are.
"""

import ast
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
MODULES = sorted(SOURCES.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCES)) for path in MODULES]
Function = ast.FunctionDef | ast.AsyncFunctionDef

BAD_NAMES = re.compile(r"(^|_)(utils?|helpers?|common|managers?|misc)(_|\.|$)")
GETTERS_OF_OTHERS = {
    "get_buffer": "asyncio's: what a BufferedProtocol reads into",
    "get_command": "click's: the group that imports commands when they are used overrides it",
}
LONG_FUNCTIONS: dict[str, str] = {}
LONGEST_MODULE, LONGEST_FUNCTION = 420, 50
MOST_EXCEPTIONS = 5
LARGEST_FOLDER = 20
IMPURE = {"asyncio", "logging", "os", "random", "socket", "subprocess", "threading", "time"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path: Path) -> Iterator[Function]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, Function))


def long_functions(path: Path) -> set[str]:
    """Name the functions of a module that are too long."""
    where = path.relative_to(SOURCES).as_posix()
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
    assert not BAD_NAMES.search(str(path.relative_to(SOURCES))), "is named for what it is"
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
    packages = {path for path in SOURCES.iterdir() if path.is_dir()}
    folders = {path.parent for path in MODULES} - packages - {SOURCES / "vipwire/modes", SOURCES / "vipwire/linux"}
    return sorted(folder.relative_to(SOURCES).as_posix() for folder in folders)


@cache
def text_of_all_tests() -> str:
    """Give the source of all tests and of what they are made of."""
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tests").rglob("*.py")))


@pytest.mark.parametrize("area", areas())
def test_an_area_has_tests(area: str) -> None:
    words = area.partition("/")[2].removeprefix("modes/").removeprefix("linux/").replace("/", "_")
    named = list((ROOT / "tests").rglob(f"test_*{words}*.py"))
    assert named or f"{area.replace('/', '.')}." in text_of_all_tests(), f"no test is of {area}"


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


def imports(path: Path) -> Iterator[str]:
    """Name what a module imports anywhere in it; of `from package import name` the name too, if it is a module."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")


@cache
def known_imports() -> dict[str, tuple[str, ...]]:
    return {dotted(path): tuple(imports(path)) for path in MODULES}


def circle(imported: Mapping[str, Iterable[str]]) -> list[str]:
    """Find modules that import each other, in a circle; none if there are none."""
    graph = {module: (set(names) & imported.keys()) - {module} for module, names in imported.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def needed(path: Path, modules: Collection[str]) -> Iterator[str]:
    """Name the modules that a module imports from: of `from package import module` only the latter."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{each.name}" for each in node.names}
            yield from full & set(modules)
            if full - set(modules):
                yield node.module


def test_no_modules_import_each_other() -> None:
    """Nor for type checkers, nor late: who reads one would have to read the other."""
    assert circle({dotted(path): list(needed(path, known_imports())) for path in MODULES}) == []
    assert set(circle({"one": ["two", "json"], "two": ["three"], "three": ["one"]})) == {"one", "two", "three"}
    assert circle({"one": ["two", "three"], "two": ["three"], "three": ["os"]}) == []


def ways_into_the_world(module: str) -> dict[str, str]:
    """Tell by which way of imports a module comes to what is not pure."""
    ways, waiting = {module: module}, [module]
    while waiting:
        here = waiting.pop(0)
        for name in known_imports().get(here, ()):
            if name not in ways:
                ways[name] = f"{ways[here]} → {name}"
                waiting.append(name)
    return {name: way for name, way in ways.items() if name.partition(".")[0] in IMPURE}


def says_pure(path: Path) -> bool:
    """Tell whether a module's docstring has the word; few texts have it, and only these are parsed."""
    pure = re.compile(r"\b[Pp]ure\b")
    return bool(pure.search(path.read_text(encoding="utf-8")) and pure.search(ast.get_docstring(tree(path)) or ""))


SAY_PURE = [dotted(path) for path in MODULES if says_pure(path)]


def test_many_modules_say_that_they_are_pure() -> None:
    assert len(SAY_PURE) > 60
    worldly = ways_into_the_world("vipwire.proxy.sync.engine"), ways_into_the_world("vipwire.proxy.loop")
    assert "asyncio" in worldly[0] or "time" in worldly[1]


@pytest.mark.parametrize("module", SAY_PURE)
def test_a_module_that_says_pure_imports_nothing_of_the_world(module: str) -> None:
    assert ways_into_the_world(module) == {}


def test_no_two_folders_import_each_other_at_any_distance() -> None:
    folders = defaultdict[str, set[str]](set)
    modules = known_imports().keys()
    for path in MODULES:
        if path.name != "__main__.py":  # the way in
            names = needed(path, modules)
            folders[folder_of(dotted(path))] |= {folder_of(name) for name in names if name in modules}
    assert circle(folders) == []


def folder_of(module: str) -> str:
    """Name the package that has a module's file."""
    return module if (SOURCES / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def test_no_folder_is_too_large_to_look_through() -> None:
    sizes = Counter(path.parent.relative_to(SOURCES).as_posix() for path in MODULES if path.name != "__init__.py")
    assert {folder: count for folder, count in sizes.items() if count > LARGEST_FOLDER} == {}


def test_no_layer_imports_one_above_it() -> None:
    """Who may know whom stands in `.importlinter`. In a process of its own: it sets up logging for itself."""
    command = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    checked = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
