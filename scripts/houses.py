"""Moves rooms of the package `vipwire` into packages of their own, and renames them wherever they are named.

`python scripts/houses.py` can be run again on a tree where some of it is done. It moves and renames only.
"""

import re
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MOVES: Final = {
    "vipwire.backends.userspace.relay": "vipwire.relay",
    "vipwire.backends.userspace.messages": "vipwire.relay.messages",
    "vipwire.backends.userspace.control_client": "vipwire.relay.control_client",
    "vipwire.backends.userspace.remote_relay": "vipwire.relay.remote_relay",
    "vipwire.ingress": "vipwire_l7.ingress",
    "vipwire.gateway": "vipwire_l7.gateway",
    "vipwire.dns": "vipwire_up.dns",
    "vipwire.cluster": "vipwire_up",
    "vipwire.lab": "vipwire_lab",
}
"""Module or package: its name before and after."""
TEXTS: Final = {
    ".py",
    ".md",
    ".toml",
    ".yaml",
    ".yml",
    ".txt",
    ".cfg",
    ".in",
    ".sh",
    ".json",
    ".tpl",
    ".importlinter",
}
NAMES: Final = {"Makefile", "Containerfile", ".importlinter", "setup", "noxfile.py"}


def path_of(module: str) -> Path:
    """Name the file or folder of a module."""
    return Path("src", *module.split("."))


def run(*command: str | Path) -> str:
    """Return what a command prints."""
    return subprocess.run(list(map(str, command)), cwd=ROOT, check=True, capture_output=True, text=True).stdout


def move() -> None:
    """Move files, and give each new package an `__init__.py`."""
    for before, after in MOVES.items():
        for suffix in ("", ".py"):
            old, new = Path(f"{path_of(before)}{suffix}"), Path(f"{path_of(after)}{suffix}")
            if not run("git", "ls-files", "--", old).strip():
                continue
            (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / new).is_dir() and (ROOT / old).is_dir():
                for each in sorted((ROOT / old).iterdir()):
                    if run("git", "ls-files", "--", each).strip():
                        run("git", "mv", each, ROOT / new / each.name)
            else:
                run("git", "mv", old, new)


def substitutions() -> list[tuple[re.Pattern[str], str]]:
    """Return patterns over dotted names and over paths below src/, the longest first."""
    found = []
    for before, after in sorted(MOVES.items(), key=lambda item: -len(item[0])):
        dotted = re.escape(before)
        found.append((re.compile(rf"(?<![\w./-]){dotted}(?![\w-])"), after))
        old, new = path_of(before).as_posix(), path_of(after).as_posix()
        found.append((re.compile(rf"(?<![\w-]){re.escape(old)}(?![\w-])"), new))
    return found


def rename() -> None:
    """Rename in all texts that git has."""
    patterns = substitutions()
    for name in run("git", "ls-files").splitlines():
        path = ROOT / name
        if path == Path(__file__) or not path.is_file() or not (path.suffix in TEXTS or path.name in NAMES):
            continue
        before = after = path.read_text(encoding="utf-8")
        for pattern, new in patterns:
            after = pattern.sub(new, after)
        if after != before:
            path.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    move()
    rename()
