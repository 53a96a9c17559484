"""Draw what runs of `python -m bench daemon -o json` have measured, against the size of the cluster.

    python -m bench daemon --services 1000 -o json > 1000.json
    python -m bench daemon --services 10000 -o json > 10000.json
    python -m bench plot 1000.json 10000.json --to docs/images

Each figure becomes an SVG, with a line for each mode and proxy. The same runs make the same bytes. It needs
matplotlib: `pip install --require-hashes -r requirements/plot.lock`.
"""

import argparse
import importlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

DRAWN: Final = {
    "start": "CPU until then",
    "change": "one change, CPU",
    "latency": "one change, event to answer",
    "memory": "peak memory",
}
"""What is drawn: the name of the file, and the figure of `bench daemon`."""
_SPEAKING: Final = {
    "start": "CPU from exec until the last Service answers",
    "change": "CPU of one change, whole process",
    "latency": "one change: event to an answer of the new endpoint",
    "memory": "peak memory of the process",
}


class Point(NamedTuple):
    """One median: of which proxy in which mode, at how many Services."""

    line: str
    services: int
    value: float
    unit: str


def points(runs: Iterable[dict[str, Any]], figure: str) -> list[Point]:
    """Collect a figure from the documents of runs."""
    named = re.compile(rf"(?P<mode>[^,]+), (?P<proxy>[^/:]+): {re.escape(figure)}")
    return [
        Point(f"{found['mode']}, {found['proxy']}", run["options"]["services"], row["median"], row["unit"])
        for run in runs
        for row in run["results"].get("daemon", [])
        if (found := named.fullmatch(row["name"]))
    ]


def draw(found: list[Point], title: str, path: Path) -> None:
    """Draw a line for each mode and proxy; both axes are logarithmic, so that what grows evenly is straight."""
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams.update({"svg.hashsalt": "vipwire", "svg.fonttype": "none", "font.family": "sans-serif"})
    lines: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for point in found:
        lines[point.line][point.services] = point.value
    shown, axes = pyplot.subplots(figsize=(6.4, 3.6))
    for name, values in lines.items():
        sizes = sorted(values)
        axes.plot(sizes, [values[size] for size in sizes], marker="o", label=name)
    axes.set(xscale="log", yscale="log", xlabel="Services", ylabel=found[0].unit, title=title)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    shown.tight_layout()
    shown.savefig(path, metadata={"Date": None, "Creator": None})
    pyplot.close(shown)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench plot", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="documents of `python -m bench daemon -o json`")
    parser.add_argument("--to", type=Path, default=Path(), help="folder for the SVGs")
    options = parser.parse_args(arguments)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.runs]
    options.to.mkdir(parents=True, exist_ok=True)
    for name, figure in DRAWN.items():
        if found := points(runs, figure):
            draw(found, _SPEAKING[name], options.to / f"{name}.svg")
