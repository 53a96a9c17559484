"""Draw what runs of `python -m bench daemon -o json` have measured, against the size of the cluster.

    python -m bench daemon --services 1000 -o json > 1000.json
    python -m bench daemon --services 10000 -o json > 10000.json
    python -m bench plot 1000.json 10000.json --to docs/images

    python -m bench plot --beside bench/beside_kube_proxy.json --to docs/images

Each figure becomes an SVG, with a line for each mode and proxy. The same runs make the same bytes. `--beside` draws
figures of two proxies that were measured in different runs; its file says how, and the picture names the file. It
needs matplotlib: `pip install --require-hashes -r requirements/plot.lock`.
"""

import argparse
import hashlib
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
"""The drawn figures: file name, and the figure of `bench daemon`."""
_SPEAKING: Final = {
    "start": "CPU from exec until the last Service answers",
    "change": "CPU of one change, whole process",
    "latency": "one change: event to an answer of the new endpoint",
    "memory": "peak memory of the process",
}


class Point(NamedTuple):
    """A median of a proxy in a mode, at a number of Services."""

    line: str
    services: int
    value: float
    unit: str


def points(runs: Iterable[dict[str, Any]], figure: str) -> list[Point]:
    named = re.compile(rf"(?P<mode>[^,]+), (?P<proxy>[^/:]+): {re.escape(figure)}")
    return [
        Point(f"{found['mode']}, {found['proxy']}", run["options"]["services"], row["median"], row["unit"])
        for run in runs
        for row in run["results"].get("daemon", [])
        if (found := named.fullmatch(row["name"]))
    ]


def _pyplot() -> Any:
    pyplot = importlib.import_module("matplotlib.pyplot")
    pyplot.rcParams.update({"svg.hashsalt": "vipwire", "svg.fonttype": "none", "font.family": "sans-serif"})
    return pyplot


def draw(found: list[Point], title: str, path: Path) -> None:
    """Draw a line for each mode and proxy; both axes are logarithmic, so that proportional growth is straight."""
    pyplot = _pyplot()
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


def draw_beside(measured: Path, path: Path) -> None:
    """Draw the panels of a file of figures side by side, each with a line for each proxy."""
    document = json.loads(measured.read_text(encoding="utf-8"))
    pyplot = _pyplot()
    shown, every = pyplot.subplots(1, len(document["panels"]), figsize=(9.2, 3.4))
    for axes, panel in zip(every, document["panels"], strict=True):
        for (name, values), style in zip(panel["lines"].items(), ("--", "-"), strict=True):
            sizes = sorted(values, key=int)
            axes.plot([int(size) for size in sizes], [values[size] for size in sizes], style, marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel="Services", ylabel=panel["unit"], title=panel["title"])
        for values, below in zip(panel["lines"].values(), (True, False), strict=True):
            for size, value in values.items():
                beside = {"xytext": (0, -14 if below else 6), "textcoords": "offset points", "ha": "center"}
                axes.annotate(f"{value:,g}", (int(size), value), **beside)
        sizes = sorted({int(size) for values in panel["lines"].values() for size in values})
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
        axes.margins(0.15, 0.2)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize="small")
    shown.suptitle(document["title"], fontsize="medium")
    shown.tight_layout()
    digest = hashlib.sha256(measured.read_bytes()).hexdigest()
    shown.savefig(path, metadata={"Date": None, "Creator": None, "Source": f"{measured}, sha256 {digest}"})
    pyplot.close(shown)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench plot", description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path, help="documents of `python -m bench daemon -o json`")
    parser.add_argument("--to", type=Path, default=Path(), help="folder for the SVGs")
    parser.add_argument("--beside", type=Path, help="figures of two proxies, to be drawn side by side")
    options = parser.parse_args(arguments)
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in options.runs]
    options.to.mkdir(parents=True, exist_ok=True)
    if options.beside:
        draw_beside(options.beside, options.to / f"{options.beside.stem.replace('_', '-')}.svg")
    for name, figure in DRAWN.items():
        if found := points(runs, figure):
            draw(found, _SPEAKING[name], options.to / f"{name}.svg")
