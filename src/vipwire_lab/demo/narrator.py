"""Prints the demo: headings, sentences, tables, and checks, which it counts.

Colour on a terminal, plain text elsewhere. Output of programs is shown unchanged and never wrapped.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from vipwire_lab.cluster.outcome import ProbeResult
from vipwire_lab.namespaces.topology import Pod

_WIDTH = 100
_PLAIN = str.maketrans("─│┬├└", "-|+++")
"""Replacements of drawing characters on an ASCII terminal."""


class Narrator:
    """Prints the demo's text and keeps failed checks."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
        self._console = Console(highlight=False, width=width)
        unicode = self._console.encoding.startswith("utf")
        self._marks = ("✓", "✗") if unicode else ("ok:", "FAILED:")
        self._letters = {} if unicode else _PLAIN
        self._chapter = 0
        self.checks = 0
        self.failures: list[str] = []

    def print_title(self, text: str) -> None:
        self._console.print(text, style="bold")

    def print_chapter(self, text: str) -> None:
        self._chapter += 1
        self._console.print(f"\n[bold cyan]{self._chapter}  {escape(text)}[/]")

    def print_text(self, text: str) -> None:
        """Print an explanation; the console wraps it."""
        self._print(Text(text))

    def print_quote(self, text: str) -> None:
        """Print typed text or a program's output unchanged."""
        for line in text.splitlines():
            text = f"     {line}".rstrip().translate(self._letters)
            self._console.print(Text(text, style="dim"), soft_wrap=True)

    def print_check(self, text: str, *, holds: bool) -> None:
        """Print a check's result and count failures."""
        self.checks += 1
        if not holds:
            self.failures.append(f"{self._chapter}: {text}")
        mark, style = (self._marks[0], "green") if holds else (self._marks[1], "bold red")
        self._print(Text.assemble((f"{mark} ", style), (text, "" if holds else style)))

    def check_answers(self, results: Sequence[ProbeResult], pods: Iterable[Pod], words: str) -> None:
        """Check that every attempt was answered, and by exactly these Pods; `words` describes them."""
        answered = sum(1 for result in results if result.answer)
        who = {result.pod for result in results}
        self.print_check(
            f"{answered} of {len(results)} answered, by {words}",
            holds=answered == len(results) and who == {pod.name for pod in pods},
        )

    def print_results(self, results: Sequence[ProbeResult]) -> None:
        counted = Counter((result.pod, result.outcome.value, result.saw) for result in results)
        self._console.print(Text(f"     {'times':>5}  {'result':<14} {'Pod':<13} source address", style="dim"))
        for (pod, outcome, saw), times in sorted(counted.items()):
            line = Text(f"     {times:>5}  {outcome:<14} ")
            line.append(f"{pod:<13} ", "green").append(saw, "magenta")
            self._console.print(line)

    @contextlib.contextmanager
    def show_waiting(self, text: str) -> Iterator[None]:
        if not self._console.is_terminal:
            self.print_text(f"{text} ...")
            yield
            return
        with self._console.status(text):
            yield

    def _print(self, text: Text) -> None:
        for line in text.wrap(self._console, self._console.width - 5):
            line.rstrip()
            self._console.print(Text("   ").append_text(line))
