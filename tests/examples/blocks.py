"""Finds the examples of the documents: fenced blocks, their commands, and the shown output."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = tuple(
    sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]),
)
COMMANDS: Final = ("console", "sh")
DATA: Final = ("yaml", "ini", "python", "text")
_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<kind>\S*)$")
_HERE: Final = re.compile(r"<<-?'?(?P<end>[A-Z]+)'?")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its place, kind and lines."""

    document: str
    line: int
    kind: str
    lines: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place as editors take it."""
        return f"{self.document}:{self.line}"


@dataclass(frozen=True, slots=True)
class Example:
    """A command, and the lines that the document shows after it. `script`: a whole block for a shell."""

    where: str
    command: str
    shown: tuple[str, ...] = ()
    script: bool = False


def name_of(document: Path) -> str:
    """Return a document's name relative to the root."""
    return str(document.relative_to(ROOT))


def blocks(document: Path) -> Iterator[Block]:
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        found = _FENCE.match(line)
        if found and opened is None:
            opened, inside = (number, found["kind"], found["indent"]), []
        elif opened is not None and line == f"{opened[2]}```":
            yield Block(name_of(document), opened[0], opened[1], tuple(inside))
            opened = None
        elif opened is not None:
            inside.append(line.removeprefix(opened[2]))
    assert opened is None, f"{name_of(document)}: a block does not end"


def indented(document: Path) -> Iterator[str]:
    """Yield the places of indented code blocks, which the tests would miss."""
    fenced, before, listed = False, "", False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced and line.startswith("    ") and line.strip() and not before.strip() and not listed:
            yield f"{name_of(document)}:{number}"
        if line.strip() and not line.startswith(" "):
            listed = re.match(r"(\d+\.|[*-]) ", line) is not None
        before = line


def examples(block: Block) -> tuple[Example, ...]:
    """Find the commands of a block: after each prompt of a console, or the whole script."""
    if block.kind == "sh":
        return (Example(block.where, "\n".join(block.lines), script=True),)
    made: list[tuple[list[str], list[str]]] = []
    going_on: str | None = None  # the end of the command's further lines
    for line in block.lines:
        if going_on is not None:
            made[-1][0].append(line)
            going_on = None if line == going_on or (going_on == "\\" and not line.endswith("\\")) else going_on
        elif line.startswith(("$ ", "# ")):
            made.append(([line[2:]], []))
            here = _HERE.search(line)
            going_on = here["end"] if here else "\\" if line.endswith("\\") else None
        else:
            assert made, f"{block.where}: a console begins with a prompt"
            made[-1][1].append(line)
    return tuple(Example(block.where, "\n".join(command), _trimmed(shown)) for command, shown in made)


def _trimmed(lines: list[str]) -> tuple[str, ...]:
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(lines)


def commands_of(document: Path) -> tuple[Example, ...]:
    """Return every example of a document, in order."""
    return tuple(each for block in blocks(document) if block.kind in COMMANDS for each in examples(block))
