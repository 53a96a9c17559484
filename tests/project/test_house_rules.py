"""Rules for every module of the packages that no linter has: lengths, circles of imports, purity, dependencies."""

import ast
import gc
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
MODULES = sorted(SOURCES.rglob("*.py"))

LONGEST_MODULE, LONGEST_FUNCTION, LARGEST_FOLDER = 420, 50, 20
OF_IMPORT = {
    "yaml": "PyYAML",
    "dns": "dnspython",
    "prometheus_client": "prometheus-client",
    "google": "protobuf",
    "grpc": "grpcio",
}
IMPURE = {"asyncio", "logging", "os", "random", "socket", "subprocess", "threading", "time"}


@cache
def tree(path: Path) -> ast.Module:
    """Parse a module, without the garbage collector, which would look through all trees again and again."""
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@cache
def statements(path: Path) -> tuple[ast.AST, ...]:
    """List a module's statements at any depth."""
    return tuple(inside(tree(path)))


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a node, at any depth. Expressions are most of a tree, and no rule asks for them."""
    waiting = [node]
    while waiting:
        for each in ast.iter_child_nodes(waiting.pop()):
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
                yield each
                waiting.append(each)


def test_modules_and_functions_are_short() -> None:
    long = {dotted(path): lines for path in MODULES if (lines := count_lines(path)) > LONGEST_MODULE}
    for path in MODULES:
        for node in statements(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
                lines = node.end_lineno - node.lineno + 1
                long |= {f"{dotted(path)}.{node.name}": lines} if lines > LONGEST_FUNCTION else {}
    assert long == {}


def test_no_folder_is_too_large_to_look_through() -> None:
    sizes = Counter(path.parent.relative_to(SOURCES).as_posix() for path in MODULES if path.name != "__init__.py")
    assert {folder: count for folder, count in sizes.items() if count > LARGEST_FOLDER} == {}


def count_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_star_catches_a_group() -> None:
    """`raise` within `except*` makes a group again before Python 3.11.4, Debian's: `errors.ungrouped` does not."""
    found = [path.name for path in MODULES if any(isinstance(node, ast.TryStar) for node in statements(path))]
    assert found == []


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
    for node in statements(path):
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


def needed(path: Path, modules: frozenset[str]) -> Iterator[str]:
    """Name the modules that a module imports from: of `from package import module` only the latter."""
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = {f"{node.module}.{each.name}" for each in node.names}
            yield from full & modules
            if full - modules:
                yield node.module


def test_no_modules_import_each_other() -> None:
    """Nor for type checkers, nor late: who reads one would have to read the other."""
    modules = frozenset(known_imports())
    assert circle({dotted(path): list(needed(path, modules)) for path in MODULES}) == []
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


def test_a_module_that_says_pure_imports_nothing_of_the_world() -> None:
    pure = re.compile(r"\b[Pp]ure\b")
    say = [dotted(path) for path in MODULES if pure.search(ast.get_docstring(tree(path)) or "")]
    assert "vipwire.modes.ebpf.render" in say
    assert {module: ways for module in say if (ways := ways_into_the_world(module))} == {}
    assert ways_into_the_world("vipwire.proxy_daemon.loop"), "a module of the shell has them"


def test_no_two_folders_import_each_other_at_any_distance() -> None:
    folders = defaultdict[str, set[str]](set)
    modules = frozenset(known_imports())
    for path in MODULES:
        if path.name != "__main__.py":  # the way in
            names = needed(path, modules)
            folders[folder_of(dotted(path))] |= {folder_of(name) for name in names if name in modules}
    assert circle(folders) == []


def folder_of(module: str) -> str:
    """Name the package that has a module's file."""
    return module if (SOURCES / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]


def test_dependencies_are_those_that_are_imported_and_each_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = (line for extra in project["optional-dependencies"].values() for line in extra)
    lines = (*project["dependencies"], *(line for line in optional if not line.startswith("vipwire[")))
    declared = {re.split(r"[<>=~! ]", line)[0] for line in lines}
    imported = {name.partition(".")[0] for names in known_imports().values() for name in names}
    foreign = imported - set(sys.stdlib_module_names) - {path.name for path in SOURCES.iterdir()}
    assert declared == {OF_IMPORT.get(name, name) for name in foreign}
    rows = set(re.findall(r"^\| ([\w-]+) \|", (ROOT / "docs/dependencies.md").read_text(), re.MULTILINE))
    assert rows - {"package"} == declared
