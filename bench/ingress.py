"""What the Ingress controller costs: `python -m bench.ingress` (needs haproxy and wrk; loopback only).

1 HAProxy with vipwire's configuration beside one written by hand for the same sites (bench/ingress_by_hand.py): one
  host, one with a cookie, one over TLS, and a thousand. HAProxy has a core of its own, wrk and the Pod have another;
  the two are asked in turns, and started anew after some rounds. The CPU time that HAProxy takes for a request is the
  figure that depends least on who else is here; `busy` tells whether rates are HAProxy's own: it is the share of its
  core that it has used.
2 From objects to serving with some Ingresses, and the memory of this process after that; then one change at a time,
  of an endpoint or of an Ingress's backend, until HAProxy answers from the new Pod.

    python -m bench.ingress --starts 0 --ingresses 20 10000 --before ../released   # another checkout beside this one

The Pod is a HAProxy that answers itself.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import ingress_by_hand
from tests.fakes.ports import free_port
from tests.l7.ingress.site import certificate, endpoint, endpoint_slice, ingress, rule, service, site

from vipwire.process_lifecycle import cyclic_garbage
from vipwire_l7.run import control
from vipwire_l7.run.controller import Controller

ANSWERING = """global
    nbthread 1
defaults
    mode http
    timeout client 60s
frontend pod
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string "{text}"
"""
HOST, HOSTS = "bench.example.com", "h{}.example.com"
PROXY_CORE, LOAD_CORE = 0, 1
SERVICES = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 5
"""The most Services of the second part: HAProxy needs a file for each server that a backend has room for."""
PATIENCE = 60.0
CONNECTIONS = 32
ASKING = """
local hosts, next_host = {%s}, 0
local made = {}
init = function() for i, h in ipairs(hosts) do made[i] = wrk.format("GET", "/app/x", {Host = h}) end end
request = function() next_host = next_host %% #made + 1; return made[next_host] end
"""


@dataclass(frozen=True)
class Case:
    """Sites to request. `annotations` are those of vipwire's Ingresses."""

    name: str
    hosts: tuple[str, ...] = (HOST,)
    sticky: bool = False
    tls: bool = False


@dataclass(frozen=True)
class Round:
    """The figures of one round of a second or two."""

    rate: float
    p99: float
    """Milliseconds."""
    cpu: float
    """Microseconds of HAProxy's CPU for a request."""
    busy: float


Start = dict[str, list[Round]]
"""The rounds of both configurations from one start of both processes."""


Took = tuple[float, float]
"""The seconds from a change to its first right answer, and vipwire's CPU seconds of that."""


@contextlib.contextmanager
def haproxy(folder: Path, text: str) -> Iterator[int]:
    """Run a HAProxy of one process; yield its pid."""
    file = folder / f"{free_port()}.cfg"
    file.write_text(text)
    with subprocess.Popen(("haproxy", "-db", "-q", "-f", str(file))) as process:
        os.sched_setaffinity(process.pid, {LOAD_CORE})
        time.sleep(0.5)
        try:
            yield process.pid
        finally:
            process.terminate()


def load(case: Case, folder: Path, port: int, seconds: int) -> tuple[int, float, float]:
    """Load the site with wrk; return the number of requests, their rate, and p99 in milliseconds."""
    asking = folder / "asking.lua"
    asking.write_text(ASKING % ", ".join(f'"{host}"' for host in case.hosts))
    flags = ["-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--latency"]
    flags += ["-H", f"Host: {HOST}", "-H", f"Cookie: {cookie_from(port)}"] if case.sticky else ["-s", str(asking)]
    url = f"{'https' if case.tls else 'http'}://127.0.0.1:{port}/app/x"
    command = ("taskset", "-c", str(LOAD_CORE), "wrk", *flags, url)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    count, rate = re.search(r"(\d+) requests in", said), re.search(r"Requests/sec:\s+([\d.]+)", said)
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", said)
    if "Non-2xx" in said or "Socket errors" in said or not (count and rate and p99):
        raise RuntimeError(said)
    return int(count[1]), float(rate[1]), float(p99[1]) * {"us": 0.001, "ms": 1, "s": 1000}[p99[2]]


def cookie_from(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port)) as asking:
        asking.sendall(f"GET /app/x HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        head = asking.makefile("rb").read(200).decode()
    return head.partition("set-cookie: ")[2].partition(";")[0]


def used(pid: int) -> float:
    """Return the CPU microseconds of a process with one thread (proc(5), schedstat)."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def measure(case: Case, folder: Path, port: int, pid: int, seconds: int) -> Round:
    before, began = used(pid), time.perf_counter()
    count, rate, p99 = load(case, folder, port, seconds)
    taken = used(pid) - before
    return Round(rate, p99, taken / count, taken / 1e6 / (time.perf_counter() - began))


def take_turns(case: Case, folder: Path, runs: dict[str, tuple[int, int]], rounds: int, seconds: int) -> Start:
    """Measure configurations, by port and pid, in turns; each round begins with the other one."""
    for _, pid in runs.values():
        os.sched_setaffinity(pid, {PROXY_CORE})
    found: Start = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name in runs if number % 2 else reversed(runs):
            result = measure(case, folder, *runs[name], seconds)
            if number:  # the first round warms up
                found[name].append(result)
    return found


async def worker_at(path: Path) -> int:
    (told,) = await control.ask_haproxy(path, ["show info"])
    return int(told.partition("\nPid: ")[2].split()[0])


async def compare(case: Case, starts: int, rounds: int, seconds: int) -> dict[str, object]:
    """Start both repeatedly, because the memory layout of a process changes its speed by up to a fifth."""
    found = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            found.append(await once(case, Path(folder), rounds, seconds))
    return judged(found)


async def once(case: Case, folder: Path, rounds: int, seconds: int) -> Start:
    """Start both configurations and measure them."""
    pod, hand = free_port(), free_port()
    with (
        haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)),
        haproxy(folder, by_hand(case, folder, hand, pod)) as by_hand_pid,
    ):
        async with site(folder) as here:
            for number, host in enumerate(case.hosts):
                name = f"web-{number}"
                annotations = {"vipwire.io/affinity": "cookie"} if case.sticky else {}
                made = ingress(name, rule(host, "/app", service=name), annotations=annotations)
                here.put(service(name), endpoint_slice(name, pod, [endpoint("127.0.0.1")]), made)
            await here.settled()
            port, worker = here.https if case.tls else here.http, await worker_at(here.haproxy.socket)
            runs = {"by hand": (hand, by_hand_pid), "vipwire": (port, worker)}
            return take_turns(case, folder, runs, rounds, seconds)


def by_hand(case: Case, folder: Path, port: int, pod: int) -> str:
    bind, hosts = f"127.0.0.1:{port}", folder / "hosts.map"
    if case.tls:
        pem = folder / "by_hand.pem"
        pem.write_text(certificate(HOST))
        bind += f" ssl crt {pem} alpn h2,http/1.1"
    if len(case.hosts) == 1:
        return ingress_by_hand.for_one_host(bind, HOST, pod, sticky=case.sticky)
    text, entries = ingress_by_hand.for_hosts(bind, list(case.hosts), pod, str(hosts))
    hosts.write_text(entries)
    return text


def judged(starts: list[Start]) -> dict[str, object]:
    """Return medians over all rounds, and ratios of vipwire to the other.

    A ratio is the median over the starts of the ratio of each start's medians. `interval` is the 95 % interval of the
    CPU time's ratio, from six starts on.
    """
    columns = ("rate", "p99", "cpu", "busy")
    names = starts[0]
    medians: dict[str, object] = {
        name: {column: median([one for each in starts for one in each[name]], column) for column in columns}
        for name in names
    }
    ratios = {column: sorted(ratio(each, column) for each in starts) for column in columns}
    return (
        medians
        | {"ratio": {column: round(statistics.median(each), 3) for column, each in ratios.items()}}
        | {"interval": [round(each, 3) for each in interval(ratios["cpu"])]}
        | {"cpu of each start": [round(each, 3) for each in ratios["cpu"]]}
    )


def median(rounds: list[Round], column: str) -> float:
    return round(float(statistics.median(getattr(each, column) for each in rounds)), 3)


def ratio(start: Start, column: str) -> float:
    return median(start["vipwire"], column) / median(start["by hand"], column)


def interval(ordered: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median, for any distribution (sign test)."""
    count, rank, missed = len(ordered), 0, 0.5 ** len(ordered)
    while missed + math.comb(count, rank + 1) * 0.5**count <= 0.025:
        rank += 1
        missed += math.comb(count, rank) * 0.5**count
    return ordered[rank], ordered[-1 - rank]


async def scale(folder: Path, count: int, changes: int) -> dict[str, object]:
    """Start with many Ingresses and their Services; change one endpoint and one backend at a time."""
    pods = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        for number, port in enumerate(pods):
            stack.enter_context(haproxy(folder, ANSWERING.format(port=port, text=number)))
        async with site(folder) as here:
            await here.settled()
            began, cpu = time.perf_counter(), time.process_time()
            cyclic_garbage.disable_collection()
            for name, port in [
                *((f"web-{number}", pods[0]) for number in range(min(count, SERVICES))),
                ("other", pods[1]),
            ]:
                here.put(service(name), slice_at(name, port))
            here.put(*(leads(number, f"web-{number % SERVICES}") for number in range(1, count)), leads(0, "other"))
            await here.settled()
            cyclic_garbage.collect_rarely()
            start = time.perf_counter() - began, time.process_time() - cpu
            memory, reloads = resident(), here.reloads[:]
            found: dict[str, list[Took]] = {"endpoint": [], "backend": []}
            for number in (each * 37 % (count - 1) + 1 for each in range(changes)):
                name, asked = f"web-{number % SERVICES}", (here.http, HOSTS.format(number))
                moves = {
                    "endpoint": tuple(slice_at(name, port) for port in pods),
                    "backend": (leads(number, name), leads(number, "other")),
                }
                for what, (before, after) in moves.items():
                    found[what].append(await change(here.controller, here.put, asked, before, after))
            if here.reloads != reloads:
                raise RuntimeError(f"there was a reload: {here.reloads[-1]}")
    return {"ingresses": count} | told(changes, start, memory, found)


def slice_at(name: str, port: int) -> dict[str, Any]:
    return endpoint_slice(name, port, [endpoint("127.0.0.1")])


def leads(number: int, to: str) -> dict[str, Any]:
    return ingress(f"i{number}", rule(HOSTS.format(number), "/", service=to))


async def change(
    controller: Controller, put: Callable[[Any], None], asked: tuple[int, str], before: Any, after: Any
) -> Took:
    """Put an object, ask the host until the other Pod answers, and put the former object again."""
    # Checkouts of before have the former name.
    wait = getattr(controller, "settled", None) or controller.wait_until_settled
    await ask(*asked)
    began, cpu = time.perf_counter(), time.process_time()
    put(after)
    await wait()
    cpu = time.process_time() - cpu
    async with asyncio.timeout(PATIENCE):
        while await ask(*asked) != b"1":  # noqa: ASYNC110  # of another process nobody is told
            await asyncio.sleep(0)
    took = time.perf_counter() - began
    put(before)
    await wait()
    return took, cpu


def resident() -> float:
    """Return the resident MB of this process, which has the controller and the objects of the test."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def told(changes: int, start: Took, memory: float, found: dict[str, list[Took]]) -> dict[str, object]:
    """Return the figures of many objects. `start` has the seconds from objects to serving, and the CPU seconds."""
    figures: dict[str, object] = {"changes": changes, "memory_mb": round(memory, 1)}
    figures |= {"objects_to_serving_s": round(start[0], 3), "objects_to_serving_cpu_s": round(start[1], 3)}
    for name, took in found.items():
        for what, values in zip(("to_answer", "cpu"), map(sorted, zip(*took, strict=True)), strict=True):
            figures[f"{name}_{what}_ms_median"] = round(1000 * statistics.median(values), 2)
            figures[f"{name}_{what}_ms_worst"] = round(1000 * values[-1], 2)
    return figures


async def ask(port: int, host: str) -> bytes:
    """Send a request on a new connection; return the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.rpartition(b"\r\n\r\n")[2]


CASES = (
    Case("one host"),
    Case("one host, a cookie", sticky=True),
    Case("one host, TLS", tls=True),
    Case("1,000 hosts", tuple(map(HOSTS.format, range(1000)))),
)


def show(name: str, figures: dict[str, object]) -> None:
    print(json.dumps({name: figures}, indent=2), flush=True)


def measure_before(checkout: str, module: str, *words: str) -> None:
    """Run a module of this folder with another checkout's vipwire and tests."""
    print("before:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "bench").symlink_to(Path(__file__).resolve().parent)
        found = Path(checkout).resolve()
        environment = os.environ | {"PYTHONPATH": f"{found}/src:{found}"}
        command = (sys.executable, "-m", module, "--starts", "0", *words)
        subprocess.run(command, cwd=folder, env=environment, check=True)


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the flags that both benchmarks have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=9, help="of both processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each start")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--changes", type=int, default=50, help="of each kind in the second part")
    parser.add_argument("--before", default="", help="another checkout of vipwire, for the second part")
    return parser


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--ingresses", type=int, nargs="*", default=[1000], help="of the second part, for each run")
    given = parser.parse_args()
    for case in (each for each in CASES if given.starts and given.case in (None, each.name)):
        show(case.name, asyncio.run(compare(case, given.starts, given.rounds, given.seconds)))
    for count in given.ingresses:
        with tempfile.TemporaryDirectory() as folder:
            show("scale", asyncio.run(scale(Path(folder), count, given.changes)))
        if given.before:
            numbers = ("--ingresses", str(count), "--changes", str(given.changes))
            measure_before(given.before, "bench.ingress", *numbers)
