"""Write docs/modes/README.md from what each mode says of itself: `make docs`. A test holds the file to this."""

import re
from collections.abc import Iterator
from pathlib import Path

from vipwire.modes.registry import every_spec
from vipwire.modes.spec import Difference, ModeSpec

DOCS = Path(__file__).parent.parent / "docs"
PATH = DOCS / "modes" / "README.md"

_INTRODUCTION = """\
# Modes

A mode is how Services get into the kernel. Every mode carries out the same plan, so what a Service *means* does not
depend on the mode. [../semantics.md](../semantics.md) says what it means, in numbered sentences, and one test suite
sends the same packets in every mode. The second table below says what differs, and why.

`make docs` writes this page from `src/vipwire/modes/*/mode.py`, where each mode says what it is.

## Which one

| mode | choose it if you are | page |
|---|---|---|
"""
_DIFFERENCES = """\

`vipwire check` says which modes this machine can run, and what it lacks for the others.

## Differences between modes

Everything else in [../semantics.md](../semantics.md) holds in every mode. Each row leads to the sentences that do
not hold there; the suite skips their tests in that mode, and all others pass.

| mode | what differs there | why |
|---|---|---|
"""
_REST = """\

[../annotations.md](../annotations.md) says which annotations a mode does not follow.

In userspace mode the relay connects from the node, so endpoints see the node's address whoever connects. What
[semantics](../semantics.md#source-addresses-masquerade) says of clients that are not masqueraded does not hold there,
nor does what any sentence says of SCTP. Their tests run all the same, without looking at sources and without SCTP.

In ipvs mode every ClusterIP is an address of this node. So a `healthCheckNodePort` answers there too, as with
kube-proxy; in all other modes it answers at the node's own addresses only. At a ClusterIP `vipwire explain` calls
that a difference.

In every mode the tests hold `vipwire explain` to what packets really do, by the kernel's objects and by the plan.
"""
_NONE = Difference((), "Nothing.", "")
_HEADING = re.compile(r"^## (.+)$|^- \*\*(S\d+)\*\* ", re.MULTILINE)


def document() -> str:
    """Write the whole page."""
    modes = every_spec()
    chosen = (f"| `{each.name}` | {each.for_whom} | [{each.page}]({each.page}) |\n" for each in modes)
    return "".join([_INTRODUCTION, *chosen, _DIFFERENCES, *_differences(modes), _REST])


def _differences(modes: tuple[ModeSpec, ...]) -> Iterator[str]:
    """Write a row for each difference, mode by mode; its words lead to the sentences that do not hold."""
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
    """Find under which heading each sentence stands, as links name it."""
    section = ""
    for heading, number in _HEADING.findall((DOCS / "semantics.md").read_text(encoding="utf-8")):
        if heading:
            section = re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        else:
            yield number, section


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
