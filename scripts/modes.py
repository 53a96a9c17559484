"""Writes docs/modes/README.md from each mode's `ModeSpec`: `make docs`. A test compares the file."""

import re
from collections.abc import Iterator
from pathlib import Path

from vipwire.modes.registry import list_specs
from vipwire.modes.spec import Difference, ModeSpec

DOCS = Path(__file__).parent.parent / "docs"
PATH = DOCS / "modes" / "README.md"

_INTRODUCTION = """\
# Modes

A mode is the way in which Services get into the kernel. [The promises](../semantics.md) hold in every mode, except
the rows of the second table. `make docs` writes this page.

## Which one

| mode | choose it for | page |
|---|---|---|
"""
_DIFFERENCES = """\

`vipwire check` lists the modes that this machine can run, and the missing parts for the others.

## Differences between modes

Each row links the sentences that do not hold in that mode.

| mode | difference | reason |
|---|---|---|
"""
_REST = """\

[../annotations.md](../annotations.md) lists the annotations that a mode does not follow.

In userspace mode endpoints see the node's address for every client:
[the promises about source addresses](../semantics.md#source-addresses-masquerade) do not hold. In ipvs mode every
ClusterIP is an address of this node, so a `healthCheckNodePort` answers there, too, as with kube-proxy.
"""
_NONE = Difference((), "Nothing.", "")
_HEADING = re.compile(r"^## (.+)$|^- \*\*(S\d+)\*\* ", re.MULTILINE)


def document() -> str:
    modes = list_specs()
    chosen = (f"| `{each.name}` | {each.for_whom} | [{each.page}]({each.page}) |\n" for each in modes)
    return "".join([_INTRODUCTION, *chosen, _DIFFERENCES, *_differences(modes), _REST])


def _differences(modes: tuple[ModeSpec, ...]) -> Iterator[str]:
    """Yield a row for each difference, mode by mode, with links to the sentences that do not hold."""
    sections = dict(_sections())
    for mode in modes:
        for each in mode.differences or (_NONE,):
            if not each.sentences:
                yield f"| {mode.name} | {each.what} | {each.why} |\n"
                continue
            numbers = ", ".join(each.sentences)
            link = f'../semantics.md#{sections[each.sentences[0]]} "{numbers}"'
            yield f"| {mode.name} | [{each.what.rstrip('.')}]({link}). | {each.why} |\n"


def _sections() -> Iterator[tuple[str, str]]:
    """Yield each sentence with the anchor of its heading."""
    section = ""
    for heading, number in _HEADING.findall((DOCS / "semantics.md").read_text(encoding="utf-8")):
        if heading:
            section = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        else:
            yield number, section


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
