"""Fuzz for real: `python -m tests.fuzz --inputs 1000000 --seconds 1200`, or `make fuzz`.

Every fuzz test of this folder becomes a target: hypothesis makes its arguments out of bytes, and atheris, where it is
installed, looks for bytes that reach code which none has reached. Without it the bytes are random. Each target runs
in a process of its own, as many at a time as there are cores. At the end it is said how many inputs each has had, and
what failed: exit status 1, and the bytes in build/fuzz, for `--replay TARGET FILE`.
"""

import argparse
import concurrent.futures
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.targets import SLOW, Target, targets

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "build" / "fuzz"
FIRST = 0.7
"""The part of the time in which every target runs."""


@dataclass(frozen=True, slots=True)
class Result:
    """A target's number of inputs, seconds and failure."""

    target: str
    inputs: int
    seconds: float
    failed: str


def run(target: Target, inputs: int, seconds: float, seed: int) -> Result:
    """Run a target in a separate process."""
    began = time.monotonic()
    FOUND.mkdir(parents=True, exist_ok=True)
    worker = (
        sys.executable,
        "-m",
        "tests.fuzz.worker",
        target.name,
        str(inputs),
        str(seconds),
        str(seed),
        str(FOUND),
    )
    done = subprocess.run(worker, cwd=ROOT, capture_output=True, text=True, errors="replace", check=False)
    said = done.stdout + done.stderr
    counted = re.findall(r"^(?:stat::number_of_executed_units:|inputs:)\s+(\d+)", said, re.MULTILINE)
    failed = "" if done.returncode == 0 else said[-4000:]
    return Result(target.name, int(counted[-1]) if counted else 0, time.monotonic() - began, failed)


def shares(weights: list[float], inputs: int) -> list[int]:
    """Distribute the inputs by weight."""
    return [max(1, math.ceil(inputs * weight / sum(weights))) for weight in weights]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of the names of targets (default: all)")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="in all")
    parser.add_argument("--seconds", type=float, default=1200.0, help="in all, on all cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--replay", nargs=2, metavar=("TARGET", "FILE"), help="run one target with the bytes of a file"
    )
    arguments = parser.parse_args()
    if arguments.replay:
        name, file = arguments.replay
        next(each for each in targets() if each.name == name).call(Path(file).read_bytes())
        return
    chosen = [each for each in targets() if not arguments.only or any(part in each.name for part in arguments.only)]
    if not chosen:
        raise SystemExit(f"no target is named so; there are {', '.join(each.name for each in targets())}")
    sys.exit(0 if _fuzzed(chosen, arguments.inputs, arguments.seconds, arguments.seed, arguments.jobs) else 1)


def _fuzzed(chosen: list[Target], inputs: int, seconds: float, seed: int, jobs: int) -> bool:
    """Give the targets their inputs, few to slow ones; then distribute the rest by equal time."""
    began, total, failed = time.monotonic(), 0, list[str]()
    waiting, left = chosen, seconds * FIRST
    weights = [1.0 if each.name.rpartition("::")[2] in SLOW else 50.0 for each in waiting]
    for number in range(3):
        wanted = shares(weights, inputs - total)
        limit = max(1.0, left * jobs / len(waiting))
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            work = zip(waiting, wanted, strict=True)
            running = [pool.submit(run, target, count, limit, seed + number) for target, count in work]
            for each in concurrent.futures.as_completed(running):
                _told(each.result())
        results = [each.result() for each in running]
        total += sum(each.inputs for each in results)
        failed += [each.target for each in results if each.failed]
        fast = sorted(results, key=lambda each: each.inputs / each.seconds, reverse=True)[: 4 * jobs]
        speeds = {each.target: each.inputs / each.seconds for each in fast if not each.failed}
        waiting = [target for target in waiting if target.name in speeds]
        weights = [speeds[target.name] for target in waiting]
        left = seconds - (time.monotonic() - began)
        if not waiting or left <= 0 or total >= inputs - len(chosen):
            break
    print(f"{total:>11,}  inputs of {len(chosen)} targets in {time.monotonic() - began:.0f} s, {len(failed)} failed")
    return not failed


def _told(result: Result) -> Result:
    print(f"{result.inputs:>11,}  {result.target} ({result.seconds:.0f} s)", flush=True)
    if result.failed:
        print(result.failed, file=sys.stderr)
    return result


if __name__ == "__main__":
    main()
