"""Change the code in small ways and tell which test files notice: `python -m scripts.mutants --help`.

A mutant is one change of one expression or statement in a function of the pure core, the registry, Leases, announcing
and the controllers. Each is written into a copy of the checkout, and only tests that reach the changed statement run,
in a process forked from one that has loaded the libraries. The table names mutants that live, and test files without
which no more mutants would live.
"""

import argparse
import ast
import contextlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parent.parent
MUTATED: Final = (
    "src/vipwire/plan/**/*.py",
    "src/vipwire/reconcile/*.py",
    "src/vipwire/watched_objects/*.py",
    "src/vipwire/kube/lease.py",
    "src/vipwire_up/api/registry.py",
    "src/vipwire_up/announcing/*.py",
    "src/vipwire_up/controllers/**/*.py",
)
TESTS: Final = ("tests/proxy/cases/test_*.py", "tests/proxy/laws/test_*.py", "tests/*/unit/test_*.py")
LIBRARIES: Final = ("hypothesis", "msgspec", "click", "yaml", "httptools", "prometheus_client", "cryptography.x509")
SECONDS_OF_A_FILE: Final = 20.0
SECONDS_OF_A_MUTANT: Final = 45.0
LOAD: Final = 6
"""So many times as long may a run take by the clock as by the CPU: the machine may have other work."""
MEMORY: Final = 4 << 30
COMPARISONS: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_DELETED = (ast.Expr, ast.Assign, ast.AugAssign, ast.Delete, ast.Raise, ast.Continue, ast.Break)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One change: the node's index in `ast.walk`, the line of its statement, and the change."""

    path: str
    node: int
    line: int
    change: str


def _statements(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.AST]]:
    """Yield each node inside a function with its statement."""

    def inside(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[ast.stmt, ast.AST]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, _DEFINITIONS):
                yield from inside(child, None)
                continue
            holder = child if isinstance(child, ast.stmt) else statement
            within = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and child in node.body
            if holder is not None and (within or statement is not None):
                yield holder, child
                yield from inside(child, holder)
            elif isinstance(child, ast.stmt):
                yield from inside(child, None)

    yield from inside(tree, None)


def _change(node: ast.AST) -> str:
    """Return a possible change of a node; "" for a docstring, or a variable whose absence is an error."""
    change = ""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            change = "comparison flipped"
        case ast.BoolOp():
            change = "and/or exchanged"
        case ast.Constant(value=bool() | int()):
            change = "constant changed"
        case ast.If() | ast.While() | ast.IfExp():
            change = "condition negated"
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            change = "return replaced"
        case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name() | ast.Tuple(), *_]):
            pass
        case _ if isinstance(node, _DELETED):
            change = "statement deleted"
    return change


def candidates(path: Path, root: Path) -> Iterator[Mutant]:
    """Yield each possible change of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    places = {node: place for place, node in enumerate(ast.walk(tree))}
    for statement, node in _statements(tree):
        if change := _change(node):
            yield Mutant(str(path.relative_to(root)), places[node], statement.lineno, change)


def mutated(text: str, mutant: Mutant) -> str:
    tree = ast.parse(text)
    found = next(node for place, node in enumerate(ast.walk(tree)) if place == mutant.node)
    match found:
        case ast.Compare():
            found.ops = [COMPARISONS[type(found.ops[0])]()]
        case ast.BoolOp():
            found.op = ast.And() if isinstance(found.op, ast.Or) else ast.Or()
        case ast.Constant(value=bool() as value):
            found.value = not value
        case ast.Constant(value=int() as value):
            found.value = value + 1
        case ast.If() | ast.While() | ast.IfExp():
            found.test = ast.UnaryOp(ast.Not(), found.test)
        case ast.Return():
            found.value = ast.Constant(None)
        case _:
            _delete(tree, found)
    return ast.unparse(ast.fix_missing_locations(tree))


def _delete(tree: ast.Module, deleted: ast.AST) -> None:
    for node in ast.walk(tree):
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and deleted in block:
                block[block.index(deleted)] = ast.Pass()


def counted(text: str, path: str) -> str:
    """Return a module's text in which each statement of a function adds its line to `sys.reached`."""
    tree = ast.parse(text)
    lines = {statement: statement.lineno for statement, node in _statements(tree) if statement is node}
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                setattr(node, name, [each for old in block for each in _noted(old, lines.get(old), path)])
    return ast.unparse(ast.fix_missing_locations(tree))


def _noted(statement: ast.stmt, line: int | None, path: str) -> list[ast.stmt]:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    if line is None or is_text:
        return [statement]
    return [*ast.parse(f"__import__('sys').reached.add(({path!r}, {line}))").body, statement]


class Notes:
    """Writes a JSON line for each test: its time and the statements it reached, or its failure."""

    def __init__(self, path: Path, wanted: frozenset[str] | None) -> None:
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._wanted = wanted
        self._killers: set[str] = set()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._wanted is not None:
            items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be loaded as a failure."""
        if report.failed:
            self._write(report.nodeid, failed=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Run a test, unless one of its file has failed."""
        name = item.nodeid.partition("::")[0]
        if name in self._killers:
            item.add_marker(pytest.mark.skip)
        self._write(item.nodeid, began=True)
        reached: set[tuple[str, int]] = sys.__dict__.setdefault("reached", set())
        reached.clear()
        began = time.monotonic()
        result = yield
        self._write(item.nodeid, seconds=round(time.monotonic() - began, 4), reached=sorted(reached))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure, of a fixture as well."""
        if report.failed:
            self._killers.add(report.nodeid.partition("::")[0])
            self._write(report.nodeid, failed=True)

    def _write(self, nodeid: str, **facts: object) -> None:
        self._file.write(json.dumps({"test": nodeid, **facts}) + "\n")


def run(copy: Path, files: Sequence[str], wanted: frozenset[str] | None, seconds: float) -> list[dict[str, Any]]:
    """Run test files in a fork of this process and return the notes; kill it after `seconds` of its CPU time."""
    notes = copy / "notes.jsonl"
    notes.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _run_here(copy, files, wanted, notes, seconds)
        os._exit(0)
    until = time.monotonic() + LOAD * seconds
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # processes of its tests
    written = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return [json.loads(line) for line in written if line.endswith("}")]


def _run_here(copy: Path, files: Sequence[str], wanted: frozenset[str] | None, notes: Path, seconds: float) -> None:
    os.setsid()
    for limit, value in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, int(seconds) + 1)):
        resource.setrlimit(limit, (value, value))
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    os.chdir(copy)
    here = {str(ROOT), str(ROOT / "src"), ""}
    sys.path[:] = [str(copy), str(copy / "src"), *(entry for entry in sys.path if entry not in here)]
    os.environ["PYTHONPATH"] = f"{copy / 'src'}:{copy}"
    os.environ["HYPOTHESIS_PROFILE"] = "quick"
    sys.modules.pop("scripts", None)
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:rerunfailures", "-o", "timeout=10", "--tb=no"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    chosen = ["-m", "not kernel and not conformance and not slow"]
    sys.__dict__["reached"] = set()
    pytest.main([*options, *chosen, "-q", *files], plugins=[Notes(notes, wanted)])


@dataclass(frozen=True)
class Reach:
    """A test that reaches mutated code, and its seconds."""

    test: str
    seconds: float


def find_reaches(copy: Path, modules: Sequence[Path], files: Sequence[str]) -> dict[tuple[str, int], list[Reach]]:
    """Run every test once; return the tests that reach each statement, without those that fail unmutated."""
    plain = {path: path.read_text(encoding="utf-8") for path in modules}
    for path, text in plain.items():
        path.write_text(counted(text, str(path.relative_to(copy))), encoding="utf-8")
    found = defaultdict[tuple[str, int], list[Reach]](list)
    for file in files:
        notes = run(copy, [file], None, SECONDS_OF_A_FILE)
        failed = {note["test"] for note in notes if note.get("failed")}
        for note in notes:
            if "reached" in note and note["test"] not in failed:
                for name, line in note["reached"]:
                    found[name, line].append(Reach(note["test"], note["seconds"]))
    for path, text in plain.items():
        path.write_text(text, encoding="utf-8")
    return found


def killers(copy: Path, mutant: Mutant, reaches: Sequence[Reach]) -> set[str]:
    """Return the test files that notice a mutant. The fastest file runs first, each up to its first failure."""
    target = copy / mutant.path
    text = target.read_text(encoding="utf-8")
    target.write_text(mutated(text, mutant), encoding="utf-8")
    by_file = defaultdict[str, float](float)
    for reach in reaches:
        by_file[reach.test.partition("::")[0]] += reach.seconds
    files = sorted(by_file, key=lambda name: by_file[name])
    notes = run(copy, files, frozenset(reach.test for reach in reaches), SECONDS_OF_A_MUTANT)
    target.write_text(text, encoding="utf-8")
    failed = {note["test"].partition("::")[0] for note in notes if note.get("failed")}
    if notes and notes[-1].get("began"):  # killed during a test: the mutant never ends
        failed.add(notes[-1]["test"].partition("::")[0])
    return failed


def superfluous(killed: Mapping[Mutant, set[str]], files: Sequence[str]) -> list[str]:
    """Return files that can be removed together without more mutants alive, those that notice the fewest first."""
    left = {mutant: set(found) for mutant, found in killed.items() if found}
    gone = []
    for file in sorted(files, key=lambda name: (sum(name in found for found in left.values()), name)):
        if all(found != {file} for found in left.values()):
            gone.append(file)
            for found in left.values():
                found.discard(file)
    return gone


def _modules(copy: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in copy.glob(pattern))


def _copy(folder: Path) -> Path:
    copy = folder / "vipwire"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    return copy


def _report(killed: Mapping[Mutant, set[str]], copy: Path, files: Sequence[str], unreached: int) -> Iterator[str]:
    living = [mutant for mutant, found in killed.items() if not found]
    yield f"{len(killed)} mutants ran, {len(living)} live, {unreached} more are reached by no test"
    for mutant in living:
        yield f"  lives: {mutant.path}:{mutant.line} {mutant.change}"
    gone = set(superfluous(killed, files))
    yield f"{'kills':>6} {'alone':>6} {'lines':>6}  test file ('-': without all of these no more mutants live)"
    for file in sorted(files):
        kills = sum(file in found for found in killed.values())
        alone = sum(found == {file} for found in killed.values())
        lines = len((copy / file).read_text(encoding="utf-8").splitlines())
        yield f"{kills:6} {alone:6} {lines:6} {'-' if file in gone else ' '}{file}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=300, help="how many changes are drawn (300)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same changes (1)")
    parser.add_argument("--seconds", type=float, default=1500, help="begin no mutant after so many seconds (1500)")
    parser.add_argument("--modules", nargs="+", default=MUTATED, help="patterns of modules that are changed")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="patterns of test files")
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    for name in LIBRARIES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="vipwire-mutants-") as folder:
        copy = _copy(Path(folder))
        modules = _modules(copy, options.modules)
        drawn = [mutant for path in modules for mutant in candidates(path, copy)]
        random.Random(options.seed).shuffle(drawn)  # noqa: S311  # not a secret
        files = sorted(str(path.relative_to(copy)) for pattern in options.tests for path in copy.glob(pattern))
        reaches = find_reaches(copy, modules, files)
        reached = {reach.test.partition("::")[0] for found in reaches.values() for reach in found}
        print(f"{len(drawn)} changes possible; tests in {len(reached)} of {len(files)} files reach them", flush=True)
        killed = dict[Mutant, set[str]]()
        unreached = 0
        for mutant in drawn[: options.mutants]:
            if time.monotonic() > until:
                break
            if found := reaches.get((mutant.path, mutant.line)):
                killed[mutant] = killers(copy, mutant, found)
            else:
                unreached += 1
                print(f"  reached by no test: {mutant.path}:{mutant.line} {mutant.change}", flush=True)
        print("\n".join(_report(killed, copy, sorted(reached), unreached)))


if __name__ == "__main__":
    main()
