"""What the Ingress controller costs: `python -m bench.ingress` (needs haproxy and wrk; loopback only).

1 HAProxy with vipwire's configuration beside one written by hand for the same sites (bench/ingress_by_hand.py): one
  host, one with a cookie, one over TLS, and a thousand. HAProxy has a core of its own, wrk and the Pod have another;
  the two are asked in turns, and started anew after some rounds. The CPU time that HAProxy takes for a request is the
  figure that depends least on who else is here; `busy` tells whether rates are HAProxy's own: it is the share of its
  core that it has used.
2 From objects to serving with 1,000 Ingresses, and one endpoint's change until HAProxy answers from the new Pod.

The Pod is a HAProxy that answers itself.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from bench import ingress_by_hand
from tests.fakes.ports import free_port
from tests.l7.ingress.site import Site, certificate, endpoint, endpoint_slice, ingress, rule, service, site

from vipwire_l7.run import control

ANSWERING = """global
    nbthread 1
defaults
    mode http
    timeout client 60s
frontend pod
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string "{text}"
"""
HOST = "bench.example.com"
PROXY_CORE, LOAD_CORE = 0, 1
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


@contextlib.asynccontextmanager
async def haproxy(folder: Path, text: str) -> AsyncIterator[int]:
    """Run a HAProxy of one process; yield its pid."""
    file = folder / f"{free_port()}.cfg"
    file.write_text(text)
    process = subprocess.Popen(("haproxy", "-db", "-q", "-f", str(file)))  # noqa: ASYNC220  # does not wait
    os.sched_setaffinity(process.pid, {LOAD_CORE})
    await asyncio.sleep(0.5)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


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


async def measure(case: Case, folder: Path, port: int, pid: int, seconds: int) -> Round:
    before, began = used(pid), time.perf_counter()
    count, rate, p99 = await asyncio.to_thread(load, case, folder, port, seconds)
    taken = used(pid) - before
    return Round(rate, p99, taken / count, taken / 1e6 / (time.perf_counter() - began))


async def compare(case: Case, starts: int, rounds: int, seconds: int) -> dict[str, object]:
    """Start both repeatedly, because the memory layout of a process changes its speed by up to a fifth."""
    found = []
    for _ in range(starts):
        with tempfile.TemporaryDirectory() as folder:
            found.append(await once(case, Path(folder), rounds, seconds))
    return judged(found)


async def once(case: Case, folder: Path, rounds: int, seconds: int) -> Start:
    """Start both configurations and measure them in turns; each round begins with the other one."""
    pod, hand = free_port(), free_port()
    async with (
        haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)),
        haproxy(folder, by_hand(case, folder, hand, pod)) as by_hand_pid,
        site(folder) as here,
    ):
        for number, host in enumerate(case.hosts):
            name = f"web-{number}"
            annotations = {"vipwire.io/affinity": "cookie"} if case.sticky else {}
            made = ingress(name, rule(host, "/app", service=name), annotations=annotations)
            here.put(service(name), endpoint_slice(name, pod, [endpoint("127.0.0.1")]), made)
        await here.settled()
        (told,) = await control.ask_haproxy(here.haproxy.socket, ["show info"])
        worker = int(told.partition("\nPid: ")[2].split()[0])
        runs = {"by hand": (hand, by_hand_pid), "vipwire": (here.https if case.tls else here.http, worker)}
        for _, pid in runs.values():
            os.sched_setaffinity(pid, {PROXY_CORE})
        found: Start = {name: [] for name in runs}
        for number in range(rounds + 1):
            for name in runs if number % 2 else reversed(runs):
                result = await measure(case, folder, *runs[name], seconds)
                if number:  # the first round warms up
                    found[name].append(result)
    return found


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
    """Start with many Ingresses, each of its own Service, and change one endpoint at a time."""
    async with site(folder) as here:
        await here.settled()
        pods = free_port(), free_port()
        async with (
            haproxy(folder, ANSWERING.format(port=pods[0], text="0")),
            haproxy(folder, ANSWERING.format(port=pods[1], text="1")),
        ):
            began = time.perf_counter()
            for number in range(count):
                name = f"web-{number}"
                objects = service(name), endpoint_slice(name, pods[0], [endpoint("127.0.0.1")])
                here.put(*objects, ingress(name, rule(f"h{number}.example.com", "/", service=name)))
            await here.settled()
            start = time.perf_counter() - began
            reloads = len(here.reloads)
            took = [await change(here, pods, number, count) for number in range(changes)]
            if len(here.reloads) != reloads:
                raise RuntimeError(f"there was a reload: {here.reloads[-1]}")
    milliseconds = sorted(1000 * each for each in took)
    return {
        "ingresses": count,
        "objects_to_serving_s": round(start, 3),
        "change_to_answer_ms_median": round(statistics.median(milliseconds), 2),
        "change_to_answer_ms_worst": round(milliseconds[-1], 2),
        "changes": changes,
    }


async def change(here: Site, pods: tuple[int, int], number: int, count: int) -> float:
    """Move a Service to the other Pod; return the seconds until that Pod answers a request."""
    which = number * 37 % count
    name, host = f"web-{which}", f"h{which}.example.com"
    await ask(here.http, host)
    began = time.perf_counter()
    here.put(endpoint_slice(name, pods[1], [endpoint("127.0.0.1")]))
    while await ask(here.http, host) != b"1":  # noqa: ASYNC110  # of another process nobody is told
        await asyncio.sleep(0)
    took = time.perf_counter() - began
    here.put(endpoint_slice(name, pods[0], [endpoint("127.0.0.1")]))
    await here.settled()
    return took


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
    Case("1,000 hosts", tuple(f"h{number}.example.com" for number in range(1000))),
)


async def measured(cases: tuple[Case, ...], given: argparse.Namespace) -> None:
    for case in cases:
        show(case.name, await compare(case, given.starts, given.rounds, given.seconds))
    if given.ingresses:
        with tempfile.TemporaryDirectory() as folder:
            show("scale", await scale(Path(folder), given.ingresses, 50))


def show(name: str, figures: dict[str, object]) -> None:
    print(json.dumps({name: figures}, indent=2), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=9, help="of both processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each start")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--ingresses", type=int, default=1000, help="of the second part; 0 leaves it out")
    given = parser.parse_args()
    chosen = tuple(case for case in CASES if given.case in (None, case.name))
    asyncio.run(measured(chosen, given))
