"""Upper limits of size figures that may only fall: `python -m tests.project.ceilings` lowers them to today's."""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tests.project.test_house_late_imports import late_imports
from tests.project.test_house_rules import MODULES, ROOT, SOURCES, count_lines, dotted, known_imports, tree

CEILINGS = Path(__file__).with_name("ceilings.txt")
PROXY_WITH_NFTABLES = (
    *("vipwire.__main__", "vipwire.cli.proxy", "vipwire.cli.start", "vipwire.proxy_daemon.run"),
    *("vipwire.modes.nftables.driver", "vipwire.modes.nftables.kernel"),
)
NOT_LOADED = re.compile(r"vipwire\.(modes\.(ebpf|iptables|ipvs|userspace)|cli\.main)\b")
"""Modes, and the group of all commands, which `vipwire proxy --proxy-mode=nftables` must not load."""
_LINE = re.compile(r"^(?P<name>[a-z+ ]+): +(?P<most>\d+)", re.MULTILINE)


def read_ceilings() -> dict[str, int]:
    return {found["name"]: int(found["most"]) for found in _LINE.finditer(CEILINGS.read_text(encoding="utf-8"))}


def measure() -> dict[str, int]:
    closure = find_closure(PROXY_WITH_NFTABLES)
    return {
        "lines of proxy with nftables": count_all_lines(closure),
        "files of proxy with nftables": len(closure),
        "lines of src": count_all_lines(MODULES),
        "lines of tests": count_all_lines((ROOT / "tests").rglob("*.py")),
        "class names that a house has twice": count_repeated_class_names(),
        "imports inside of functions": sum(map(late_imports, MODULES)),
    }


def lower() -> None:
    """Write each figure that fell, and keep the reasons beside the numbers."""
    today = measure()

    def fall(found: re.Match[str]) -> str:
        name, most = found["name"], int(found["most"])
        return found[0].removesuffix(found["most"]) + str(min(most, today[name]))

    CEILINGS.write_text(_LINE.sub(fall, CEILINGS.read_text(encoding="utf-8")), encoding="utf-8")


def count_all_lines(paths: Iterable[Path]) -> int:
    return sum(map(count_lines, paths))


def find_closure(roots: tuple[str, ...]) -> list[Path]:
    """Return the modules that the roots import directly or indirectly, and their packages."""
    paths = {dotted(path): path for path in MODULES}
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in paths and name not in found and not NOT_LOADED.match(name):
            found.add(name)
            waiting += [name.rpartition(".")[0], *known_imports()[name]]
    return [paths[name] for name in found]


def count_repeated_class_names() -> int:
    """Count public class names that occur more than once in one of the import packages."""
    seen: Counter[tuple[str, str]] = Counter()
    for path in MODULES:
        house = path.relative_to(SOURCES).parts[0]
        classes = (node.name for node in tree(path).body if isinstance(node, ast.ClassDef))
        seen.update((house, name) for name in classes if name[0] != "_")
    return sum(count > 1 for count in seen.values())


if __name__ == "__main__":
    lower()
