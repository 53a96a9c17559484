"""Measure everything that docs/performance.md says: `python -m bench`, as root.

Each run is a process of its own in a network namespace of its own; nothing of this machine's own is touched. Two
more commands draw: `python -m bench plot --help`, `python -m bench flame --help`.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
from typing import Any

import msgspec
from bench.options import Options
from bench.report import Figure, Row, document, rows, text

SCENARIOS = ("load", "change", "daemon", "datapath", "rival")
DRAWINGS = ("plot", "flame")
OTHERS = (
    "scale",
    "iptables",
    "userspace",
    "api_costs",
    "page_costs",
    "shares",
    "hostile_starts",
    "ejection",
    "ebpf",
    "offload",
)


def run(name: str, options: Options) -> list[Figure]:
    """Run a scenario once in another process; raise SystemExit with its error output."""
    command = ["unshare", "--net", sys.executable, "-m", "bench.run", name, msgspec.json.encode(options).decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        raise SystemExit(f"{name} failed with status {done.returncode}")
    return msgspec.json.decode(done.stdout, type=list[Figure])


def main() -> None:
    if sys.argv[1:2] and sys.argv[1] in DRAWINGS:
        importlib.import_module(f"bench.{sys.argv[1]}").main(sys.argv[2:])
        return
    arguments = parser().parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces need root: sudo python -m bench")
    options = Options(
        services=arguments.services,
        endpoints=arguments.endpoints,
        samples=arguments.samples,
        gap=arguments.gap,
        connections=arguments.connections,
        sizes=tuple(arguments.sizes),
        rivals=tuple(arguments.rivals),
        broken=arguments.broken,
        variants=tuple(arguments.variants),
        modes=tuple(arguments.modes),
        before=arguments.before,
        kube_proxy=arguments.kube_proxy,
    )
    results: dict[str, list[dict[str, Any]]] = {}
    missed = False
    for name in arguments.scenarios or SCENARIOS:
        table = rows([run(name, options) for _ in range(arguments.rounds)])
        results[name] = document(table)
        missed = missed or any(row.verdict == "MISSED" for row in table)
        if arguments.output == "text":
            _print(name, options, table)
    if arguments.output == "json":
        json.dump({"options": msgspec.to_builtins(options), "results": results}, sys.stdout, indent=2)
    sys.exit(1 if missed else 0)


def _print(name: str, options: Options, table: list[Row]) -> None:
    title = importlib.import_module(f"bench.{name}").TITLE
    print(text(f"{name}: {title} ({options.services:,} Services x {options.endpoints} endpoints)", table), flush=True)
    print()


def parser() -> argparse.ArgumentParser:
    default = Options()
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument(
        "scenarios", nargs="*", choices=(*SCENARIOS, *OTHERS, []), help="which (default: all but scale)"
    )
    made.add_argument("--services", type=int, default=default.services)
    made.add_argument("--endpoints", type=int, default=default.endpoints, help="of each Service")
    made.add_argument("--rounds", type=int, default=3, help="how often each scenario is run")
    made.add_argument("--samples", type=int, default=default.samples, help="single changes measured, of each kind")
    made.add_argument("--gap", type=float, default=default.gap, help="seconds of rest before each, of whole proxies")
    made.add_argument("--connections", type=int, default=default.connections, help="of each kind, on the data path")
    made.add_argument("--sizes", type=int, nargs="+", default=default.sizes, help="Services, for changes and packets")
    made.add_argument("--rivals", type=int, nargs="+", default=default.rivals, help="Services, beside nft")
    made.add_argument("--broken", type=int, default=default.broken, help="objects, at hostile starts")
    made.add_argument(
        "--variants", choices=default.variants, nargs="+", default=default.variants, help="of iptables: see there"
    )
    made.add_argument(
        "--modes", nargs="+", default=default.modes, help="of whole proxies; iptables-nft and iptables-legacy are two"
    )
    made.add_argument("--before", default="", help="another checkout of vipwire, to run beside this one")
    made.add_argument("--kube-proxy", default="", help="the program, to run beside vipwire")
    made.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return made


if __name__ == "__main__":
    main()
