"""Lays out a packet's way through the kernel: a table, or, where a terminal is too narrow for one, a list.

    prerouting: chain services
      meta priority set ip daddr . meta l4proto . th dport map @service-ips
          goto service-ip
          → goes to service-ip

A rule is folded between its words only, never inside an element such as `10.0.0.1 . tcp . 80 : goto x`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from vipwire.inspect.command.show import coloured, table
from vipwire.process.columns import GAP, NARROWEST_PROSE, Column, Prose, unbroken
from vipwire.reconcile.steps import ObjectState

_HOLDS: Final = frozenset({".", ":", "goto", "jump"})
"""Words that hold those beside them together: of an element's key, its value, its verdict."""
_COLUMNS: Final = (
    Column("on the way"),
    Column("rule or element", prose=True, holds=_HOLDS),
    Column("what it does", prose=True, rank=1),
    Column("state"),
)
_RULE_INDENT: Final = 2
_FOLDED_INDENT: Final = 6
Step = Mapping[str, Any]


class Way:
    """The steps of a packet, as a document has them."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._planned = all(step["state"] == ObjectState.PLANNED.value for step in steps)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield a table if it fits without breaking an element, else a list."""
        if console.is_terminal and self._least_width() > options.max_width:
            yield from self._list(options.max_width)
        else:
            yield self._table()

    def _table(self) -> RenderableType:
        rows = [[step["object"], step["text"], step["effect"], coloured(step["state"])] for step in self._steps]
        if self._planned:
            return table(_COLUMNS[:-1], [row[:-1] for row in rows])
        return table(_COLUMNS, rows)

    def _least_width(self) -> int:
        """Measure the table with each rule folded wherever it may be."""
        widths = [
            max((cell_len(step["object"]) for step in self._steps), default=0),
            max((cell_len(word) for step in self._steps for word in unbroken(step["text"], _HOLDS)), default=0),
            NARROWEST_PROSE,
            0 if self._planned else max(cell_len(step["state"]) for step in self._steps),
        ]
        return sum(widths) + len(GAP) * sum(map(bool, widths[1:]))

    def _list(self, width: int) -> Iterator[RenderableType]:
        for place, steps in groupby(self._steps, key=lambda step: str(step["object"])):
            yield Prose(Text(place, "bold"), _FOLDED_INDENT)
            yield from _lines(steps, width)


def _lines(steps: Iterable[Step], width: int) -> Iterator[RenderableType]:
    for step in steps:
        rule = Text(" " * _RULE_INDENT + step["text"])
        effect = Text.assemble(("→ ", "dim"), (step["effect"], "dim"))
        if step["state"] != ObjectState.PLANNED.value:
            effect.append(", ").append_text(coloured(step["state"]))
        if rule.cell_len + len(GAP) + effect.cell_len <= width:
            yield Prose(rule.append(GAP).append_text(effect), _FOLDED_INDENT)
        else:
            yield Prose(rule, _FOLDED_INDENT, _HOLDS)
            yield Prose(Text(" " * _FOLDED_INDENT).append_text(effect), _FOLDED_INDENT + 2)
