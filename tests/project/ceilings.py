"""Figures of size that may only fall: `python -m tests.project.ceilings` writes today's where they are lower."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
CEILINGS = Path(__file__).with_name("ceilings.txt")
PROXY_WITH_NFTABLES = (
    *("vipwire.__main__", "vipwire.cli.proxy", "vipwire.cli.start", "vipwire.proxy.run"),
    *("vipwire.modes.nftables.driver", "vipwire.modes.nftables.kernel"),
)
OTHER_MODES = re.compile(r"vipwire\.modes\.(ebpf|iptables|ipvs|userspace)\b")
"""Modes that `vipwire proxy --proxy-mode=nftables` does not load."""
_LINE = re.compile(r"^(?P<name>[a-z+ ]+): +(?P<most>\d+)", re.MULTILINE)


def read_ceilings() -> dict[str, int]:
    return {found["name"]: int(found["most"]) for found in _LINE.finditer(CEILINGS.read_text(encoding="utf-8"))}


def measure() -> dict[str, int]:
    closure = find_closure(PROXY_WITH_NFTABLES)
    return {
        "lines of proxy with nftables": count_lines(closure),
        "files of proxy with nftables": len(closure),
        "lines of src": count_lines(find_modules("src")),
        "lines of tests": count_lines(find_modules("tests")),
        "class names that a house has twice": count_repeated_class_names(),
        "imports inside of functions": sum(map(count_late_imports, find_modules("src"))),
    }


def lower() -> None:
    """Write each figure that fell, and leave the reasons beside the numbers."""
    today = measure()

    def fall(found: re.Match[str]) -> str:
        name, most = found["name"], int(found["most"])
        return found[0].removesuffix(found["most"]) + str(min(most, today[name]))

    CEILINGS.write_text(_LINE.sub(fall, CEILINGS.read_text(encoding="utf-8")), encoding="utf-8")


@cache
def find_modules(folder: str) -> tuple[Path, ...]:
    return tuple(sorted((ROOT / folder).rglob("*.py")))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def count_lines(paths: tuple[Path, ...]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def find_closure(roots: tuple[str, ...]) -> tuple[Path, ...]:
    """Find the modules that the roots import at any distance, and the packages around them."""
    paths = {name_module(path): path for path in find_modules("src")}
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in paths and name not in found and not OTHER_MODES.match(name):
            found.add(name)
            waiting += [name.rpartition(".")[0], *read_imports(paths[name])]
    return tuple(paths[name] for name in found)


def name_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def read_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(parse(path)):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{each.name}" for each in names)


def count_late_imports(path: Path) -> int:
    functions = (node for node in ast.walk(parse(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return len(
        {node for each in functions for node in ast.walk(each) if isinstance(node, ast.Import | ast.ImportFrom)}
    )


def count_repeated_class_names() -> int:
    """Count public class names that stand more than once in one of the import packages."""
    seen: Counter[tuple[str, str]] = Counter()
    for path in find_modules("src"):
        house = path.relative_to(ROOT / "src").parts[0]
        seen.update(
            (house, node.name) for node in parse(path).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
        )
    return sum(count > 1 for count in seen.values())


if __name__ == "__main__":
    lower()
