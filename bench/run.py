"""Runs one scenario once, in this process and a new network namespace: `python -m bench.run NAME OPTIONS`."""

import importlib
import json
import subprocess
import sys
from dataclasses import asdict

import msgspec
from bench.options import Options
from bench.report import Figure


def main() -> None:
    name, options = sys.argv[1:]
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    scenario = importlib.import_module(f"bench.{name}")
    figures: list[Figure] = scenario.measure(msgspec.json.decode(options, type=Options))
    json.dump([asdict(figure) for figure in figures], sys.stdout)


if __name__ == "__main__":
    main()
