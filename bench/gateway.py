"""What `vipwire gateway` costs: `python -m bench.gateway` (needs haproxy and wrk; loopback only).

The same as bench.ingress measures, for HTTPRoutes: HAProxy with the configuration of vipwire beside one by hand for
the same sites; from objects to serving with 1,000 HTTPRoutes and their Services; then one endpoint's change at a time
until HAProxy answers from the new Pod.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.ingress import (
    ANSWERING,
    CASES,
    LOAD_CORE,
    PROXY_CORE,
    Case,
    Round,
    Start,
    ask,
    by_hand,
    judged,
    load,
    show,
    used,
)
from tests.fakes.ports import free_port
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service

from vipwire_l7.run import control

GATEWAY = """
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge}
spec:
  gatewayClassName: vipwire
  listeners: [{name: http, port: $http, protocol: HTTP}]
"""
ROUTE = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {name}}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [{host}]
  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: {name}, port: 8080}}]}}]
"""


@contextmanager
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


def put_routes(here: GatewaySite, hosts: tuple[str, ...], pod: int, path: str) -> None:
    here.put(GATEWAY)
    for number, host in enumerate(hosts):
        here.put(service(f"web-{number}", "127.0.0.1", pod))
        here.put(ROUTE.format(name=f"web-{number}", host=host, path=path))


def once(case: Case, folder: Path, rounds: int, seconds: int) -> Start:
    """Start both configurations and measure them in turns; each round begins with the other one."""
    pod, hand = free_port(), free_port()
    with ExitStack() as stack:
        stack.enter_context(haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)))
        by_hand_pid = stack.enter_context(haproxy(folder, by_hand(case, folder, hand, pod)))
        here = stack.enter_context(gateways(folder))
        put_routes(here, case.hosts, pod, "/app")
        list_all(here)
        here.settle()
        (told,) = here.run(control.ask(here.haproxy.socket, ["show info"]))
        worker = int(told.partition("\nPid: ")[2].split()[0])
        runs = {"by hand": (hand, by_hand_pid), "vipwire": (here.port("http"), worker)}
        for _, pid in runs.values():
            os.sched_setaffinity(pid, {PROXY_CORE})
        found: Start = {name: [] for name in runs}
        for number in range(rounds + 1):
            for name in runs if number % 2 else reversed(runs):
                result = measure(case, folder, *runs[name], seconds)
                if number:  # the first round warms up
                    found[name].append(result)
    return found


def measure(case: Case, folder: Path, port: int, pid: int, seconds: int) -> Round:
    before, began = used(pid), time.perf_counter()
    count, rate, p99 = load(case, folder, port, seconds)
    taken = used(pid) - before
    return Round(rate, p99, taken / count, taken / 1e6 / (time.perf_counter() - began))


def scale(folder: Path, count: int, changes: int) -> dict[str, object]:
    """Start with many HTTPRoutes, each of its own Service, and change one endpoint at a time."""
    pods = free_port(), free_port()
    with ExitStack() as stack:
        for number, port in enumerate(pods):
            stack.enter_context(haproxy(folder, ANSWERING.format(port=port, text=number)))
        here = stack.enter_context(gateways(folder))
        hosts = tuple(f"h{number}.example.com" for number in range(count))
        put_routes(here, hosts, pods[0], "/")
        began = time.perf_counter()
        list_all(here)
        here.settle()
        start = time.perf_counter() - began
        reloads = [each.reload for each in here.done if each.reload]
        took = [change(here, pods, number * 37 % count) for number in range(changes)]
        if [each.reload for each in here.done if each.reload] != reloads:
            raise RuntimeError("there was a reload")
    milliseconds = sorted(1000 * each for each in took)
    return {
        "routes": count,
        "objects_to_serving_s": round(start, 3),
        "change_to_answer_ms_median": round(statistics.median(milliseconds), 2),
        "change_to_answer_ms_worst": round(milliseconds[-1], 2),
        "changes": changes,
    }


def change(here: GatewaySite, pods: tuple[int, int], which: int) -> float:
    """Move a Service to the other Pod; return the seconds until that Pod answers a request."""
    name, host, port = f"web-{which}", f"h{which}.example.com", here.port("http")
    after, before = (here.objects(service(name, "127.0.0.1", pod))[1] for pod in reversed(pods))

    async def changing() -> float:
        await ask(port, host)
        began = time.perf_counter()
        here.put_object(after)
        while await ask(port, host) != b"1":  # noqa: ASYNC110  # of another process nobody is told
            await asyncio.sleep(0)
        took = time.perf_counter() - began
        here.put_object(before)
        await here.controller.settled()
        return took

    return float(here.run(changing()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=9, help="of both processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each start")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--routes", type=int, default=1000, help="of the second part; 0 leaves it out")
    given = parser.parse_args()
    for case in (each for each in CASES if not each.sticky and not each.tls):
        found = []
        for _ in range(given.starts):
            with tempfile.TemporaryDirectory() as folder:
                found.append(once(case, Path(folder), given.rounds, given.seconds))
        if found:
            show(case.name, judged(found))
    if given.routes:
        with tempfile.TemporaryDirectory() as folder:
            show("scale", scale(Path(folder), given.routes, 50))
