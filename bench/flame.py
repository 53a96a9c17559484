"""Draw flame graphs of the first sync and of single changes: where the CPU time of a whole proxy goes.

    sudo python -m bench flame --services 10000 --to docs/images

py-spy looks 400 times a second at what holds Python's lock: requirements/plot.lock has it.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.blackbox.daemon import PATIENCE
from bench.blackbox.scene import Scene, each, scene
from bench.cluster import NODE, POD_CIDR
from bench.datapath import inside

RATE = 400
CHANGES = 500
_SETTLED_SECONDS = 3.0


def first_sync(where: Scene, folder: Path, to: Path) -> None:
    """Record a proxy from exec until its last Service answers."""
    with inside(where.where.node):
        proxy = ["vipwire", "proxy", "--state-dir", str(folder), "--hostname-override", NODE]
        proxy += ["--cluster-cidr", POD_CIDR, "--master", where.api.url]
        began = subprocess.Popen([*_record(to), "--", sys.executable, "-m", *proxy], stderr=subprocess.DEVNULL)
    limit = time.monotonic() + PATIENCE
    while where.answer(where.services) is None and time.monotonic() < limit:
        time.sleep(0.05)
    _end(_child(began.pid))
    began.wait(PATIENCE)
    _retitle(to, f"vipwire proxy, from exec to the last of {where.services:,} Services: CPU time")


def changes(where: Scene, folder: Path, to: Path) -> None:
    """Record a proxy while endpoints change one after the other."""
    with inside(where.where.node):
        proxy = ["vipwire", "proxy", "--state-dir", str(folder), "--hostname-override", NODE]
        proxy += ["--cluster-cidr", POD_CIDR, "--master", where.api.url]
        running = subprocess.Popen([sys.executable, "-m", *proxy], stderr=subprocess.DEVNULL)
    while where.answer(where.services) is None:
        time.sleep(0.05)
    time.sleep(_SETTLED_SECONDS)
    watching = subprocess.Popen([*_record(to), "--pid", str(running.pid)], stderr=subprocess.DEVNULL)
    each(range(1, CHANGES + 1), where.moved, 0.0)
    running.terminate()
    running.wait(PATIENCE)
    watching.wait(PATIENCE)
    _retitle(to, f"vipwire proxy, single changes among {where.services:,} Services: CPU time")


def _record(to: Path) -> list[str]:
    spy = Path(sys.executable).with_name("py-spy")
    return [str(spy), "record", "--gil", "--function", "--rate", str(RATE), "--output", str(to), "--nonblocking"]


def _retitle(path: Path, title: str) -> None:
    """Replace the title, py-spy's command line, which contains this machine's folders."""
    drawn = path.read_text(encoding="utf-8")
    drawn = re.sub(r'(<text id="title"[^>]*>)[^<]*', rf"\g<1>{title}", drawn)
    path.write_text(re.sub(r"/[\w./-]*/(?:bin|tmp)/[\w./-]*", "…", drawn), encoding="utf-8")


def _child(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])


def _end(pid: int) -> None:
    os.kill(pid, 15)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench flame", description=__doc__)
    parser.add_argument("--services", type=int, default=10_000)
    parser.add_argument("--endpoints", type=int, default=10)
    parser.add_argument("--to", type=Path, default=Path(), help="folder for the SVGs")
    options = parser.parse_args(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as state:
        with scene(options.services, options.endpoints) as where:
            first_sync(where, Path(state), options.to / "flame-first-sync.svg")
        with scene(options.services, options.endpoints) as where:
            changes(where, Path(state), options.to / "flame-change.svg")
