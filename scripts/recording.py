"""Records `vipwire lab demo` as an animated SVG: `python -m scripts.recording`, or `make recording`.

The demo runs in a terminal of 100 columns; each line appears in docs/images/demo.svg with its real timing, and pauses
of a second at most. CSS alone animates it.
"""

import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT: Final = Path(__file__).parents[1]
COLUMNS: Final = 100
ROWS: Final = 28
PAUSE: Final = 1.0
CELL: Final = (7.4, 18)
"""Width and height of a character, in pixels."""
CONSOLE: Final = Console(width=COLUMNS, force_terminal=True)
_REWRITTEN: Final = re.compile(r"\x1b\[2K|\r")
_CONTROL: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[()][A-B0-2]|\r")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the terminal, and its completion in seconds of the picture's time."""

    text: Text
    at: float


def record(command: list[str]) -> list[Line]:
    """Run a command in a new terminal; raise SystemExit if it fails."""
    leader, follower = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, cwd=ROOT, env=os.environ | size
    )
    os.close(follower)
    lines, rest, shown, last = [], "", 0.0, time.monotonic()
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed: Linux says EIO
            break
        if not part:
            break
        now = time.monotonic()
        shown, last = shown + min(now - last, PAUSE), now
        *complete, rest = (rest + part.decode(errors="replace")).split("\n")
        lines += [Line(Text.from_ansi(left_of(line)), shown) for line in complete]
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return lines


def left_of(line: str) -> str:
    """Remove text that the line overwrote or cleared, and cursor movements."""
    return _CONTROL.sub("", _REWRITTEN.split(line.rstrip("\r"))[-1])


def spans(text: Text) -> str:
    pieces = (piece for piece in text.render(CONSOLE) if piece.text)
    return "".join(f"<tspan{attributes(piece)}>{escape(piece.text)}</tspan>" for piece in pieces)


def attributes(piece: Segment) -> str:
    style = piece.style or Style()
    found = ""
    if style.color is not None and not style.color.is_default:
        red, green, blue = style.color.get_truecolor(SVG_EXPORT_THEME)
        found += f' fill="#{red:02x}{green:02x}{blue:02x}"'
    if style.bold:
        found += ' font-weight="bold"'
    if style.dim:
        found += ' opacity="0.6"'
    return found


def picture(lines: list[Line]) -> str:
    """Draw the lines: each appears at its time, and the window follows."""
    width, height = COLUMNS * CELL[0] + 32, ROWS * CELL[1] + 24
    whole = lines[-1].at + 4
    rows, steps = [], ["0%{transform:translateY(0)}"]
    for number, line in enumerate(lines):
        start = line.at / whole * 100
        rows.append(
            f'<text x="16" y="{(number + 1) * CELL[1]}" style="animation:l{number} {whole:.2f}s infinite">'
            f"{spans(line.text)}</text>"
        )
        steps_of_line = f"0%,{max(start - 0.01, 0):.2f}%{{visibility:hidden}}{start:.2f}%,100%{{visibility:visible}}"
        rows.append(f"<style>@keyframes l{number}{{{steps_of_line}}}</style>")
        if number >= ROWS:
            offset = (number - ROWS + 1) * CELL[1]
            steps.append(f"{start:.2f}%{{transform:translateY(-{offset}px)}}")
    last = max(len(lines) - ROWS, 0) * CELL[1]
    steps.append(f"100%{{transform:translateY(-{last}px)}}")
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">
<title>make demo: Services at work between two nodes, five Pods and a client</title>
<style>
text {{ font: 12px ui-monospace, "DejaVu Sans Mono", monospace; fill: #c9d1d9; white-space: pre }}
g {{ animation: scroll {whole:.2f}s step-end infinite }}
@keyframes scroll {{ {"".join(steps)} }}
@media (prefers-reduced-motion: reduce) {{ g, text {{ animation: none !important }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg x="0" y="12" width="{width:.0f}" height="{ROWS * CELL[1]}"><g>
{"".join(rows)}
</g></svg>
</svg>
"""


def main() -> None:
    lines = record([".venv/bin/vipwire", "lab", "demo"])
    place = ROOT / "docs/images/demo.svg"
    place.write_text(picture(lines), encoding="utf-8")
    sys.stdout.write(f"{place}: {len(lines)} lines, {lines[-1].at:.0f} s, {place.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    main()
