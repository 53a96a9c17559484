"""What the Ingress controller costs: `python -m bench.ingress` (needs haproxy; loopback only, ends by itself).

1 Requests per second and p99, HAProxy with vipwire's configuration beside one written by hand, in turns, in one run.
2 From start to serving with 1,000 Ingresses, and one endpoint's change until HAProxy answers from the new Pod.

The server behind is a HAProxy that answers itself, so that it is not what is measured. The load is made by this
script with keep-alive connections over raw sockets; it shares the cores with what it measures, and with whoever else
uses the machine: the CPU time that HAProxy takes for a request is the figure that depends least on them.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from tests.ingress.site import Site, endpoint, endpoint_slice, free_port, ingress, rule, service, site

from vipwire.ingress.run import control

BY_HAND = """global
    nbthread 1
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    option forwardfor
frontend front
    bind 127.0.0.1:{port}
    use_backend web if {{ req.hdr(host) -i bench.example.com }} {{ path_beg /app }}
backend web
    server one 127.0.0.1:{pod} weight 128
"""
ANSWERING = """global
    nbthread 1
defaults
    mode http
    timeout client 60s
frontend pod
    bind 127.0.0.1:{port}
    http-request return status 200 content-type text/plain string "{text}"
"""
REQUEST = b"GET /app/x HTTP/1.1\r\nHost: bench.example.com\r\n\r\n"


@contextlib.asynccontextmanager
async def haproxy(folder: Path, text: str) -> AsyncIterator[int]:
    """Run a HAProxy of one process; give its number."""
    file = folder / f"{free_port()}.cfg"
    file.write_text(text)
    process = subprocess.Popen(("haproxy", "-db", "-q", "-f", str(file)))  # noqa: ASYNC220  # does not wait
    await asyncio.sleep(0.5)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


async def load(port: int, seconds: float, clients: int) -> list[float]:
    """Ask as fast as possible; give the milliseconds of each request."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(REQUEST)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head.decode())
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            took.append(1000 * (time.perf_counter() - began))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return took


def busy(pid: int) -> float:
    """Tell the seconds of CPU that a process has used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def compare(folder: Path, rounds: int, seconds: float) -> dict[str, object]:
    """Measure both configurations in turns."""
    pod, hand = free_port(), free_port()
    found: dict[str, list[tuple[float, float, float]]] = {"by hand": [], "vipwire": []}
    async with (
        haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)),
        haproxy(folder, BY_HAND.format(port=hand, pod=pod)) as by_hand,
        site(folder) as here,
    ):
        here.put(service("web"), endpoint_slice("web", pod, [endpoint("127.0.0.1")]))
        here.put(ingress("web", rule("bench.example.com", "/app")))
        await here.settled()
        (told,) = await control.ask(here.haproxy.socket, ["show info"])
        worker = int(told.partition("\nPid: ")[2].split()[0])
        for number in range(rounds + 1):
            for name, port, pid in (("by hand", hand, by_hand), ("vipwire", here.http, worker)):
                before = busy(pid)
                took = sorted(await load(port, seconds, 16))
                if number:  # the first round warms up
                    used = 1e6 * (busy(pid) - before) / len(took)
                    found[name].append((len(took) / seconds, took[int(len(took) * 0.99)], used))
    return {name: medians(values) for name, values in found.items()} | {
        "cpu_ratio": round(
            statistics.median(v[2] for v in found["vipwire"]) / statistics.median(v[2] for v in found["by hand"]), 3
        ),
        "rates": {name: [round(rate) for rate, _, _ in values] for name, values in found.items()},
    }


def medians(values: list[tuple[float, float, float]]) -> dict[str, float]:
    """Give the median of each figure over the rounds."""
    rate, p99, cpu = (statistics.median(column) for column in zip(*values, strict=True))
    return {"requests_per_second": round(rate), "p99_ms": round(p99, 3), "cpu_us_per_request": round(cpu, 1)}


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
    """Move a Service to the other Pod; give the seconds until a request is answered by it."""
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
    """Ask once, on a connection of its own; give the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.rpartition(b"\r\n\r\n")[2]


async def measured(rounds: int, seconds: float, count: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        scaled = await scale(Path(second), count, 50)
        return {"scale": scaled, "beside_by_hand": await compare(Path(first), rounds, seconds)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ingresses", type=int, default=1000)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measured(given.rounds, given.seconds, given.ingresses)), indent=2))
