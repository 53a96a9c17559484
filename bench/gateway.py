"""What `vipwire gateway` costs: `python -m bench.gateway` (needs haproxy and wrk; loopback only).

The same as bench.ingress measures, for HTTPRoutes: HAProxy with the configuration of vipwire beside one by hand for
the same sites; from objects to serving with some HTTPRoutes and their Services; then one change at a time, of an
endpoint or of a route's backendRef, until HAProxy answers from the new Pod. Then many changes under load: none may
need a reload, no request may fail.

    python -m bench.gateway --starts 0 --routes 20 10000 --before ../released   # another checkout beside this one
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service, tls_secret

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


SPLIT = """
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: split}}
spec:
  parentRefs: [{{name: edge}}]
  hostnames: [split.example.com]
  rules: [{{backendRefs: [{{name: web-0, port: 8080, weight: {}}}, {{name: web-1, port: 8080, weight: {}}}]}}]
"""
HOST = "h{}.example.com"


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
    texts = service("NAME", "127.0.0.1", pod), ROUTE.format(name="NAME", host="HOST", path=path)
    written = [json.dumps(each) for text in texts for each in here.objects(text)]  # YAML takes too long for thousands
    for number, host in enumerate(hosts):
        for text in written:
            here.put_object(json.loads(text.replace("NAME", f"web-{number}").replace("HOST", host)))


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
        (told,) = here.run(control.ask_haproxy(here.haproxy.socket, ["show info"]))
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
    """Start with many HTTPRoutes, each of its own Service; change one endpoint and one backendRef at a time."""
    pods = free_port(), free_port()
    with ExitStack() as stack:
        for number, port in enumerate(pods):
            stack.enter_context(haproxy(folder, ANSWERING.format(port=port, text=number)))
        here = stack.enter_context(gateways(folder))
        put_routes(here, tuple(map(HOST.format, range(count))), pods[0], "/")
        here.put(service("other", "127.0.0.1", pods[1]))
        here.put(ROUTE.format(name="other", host="other.example.com", path="/"))
        began, cpu = time.perf_counter(), time.process_time()
        list_all(here)
        here.settle()
        start, start_cpu = time.perf_counter() - began, time.process_time() - cpu
        reloads = [each.reload for each in here.done if each.reload]
        which = [number * 37 % count for number in range(changes)]
        found = {"endpoint": changed(here, which, pods), "backend_ref": changed(here, which, None)}
        if [each.reload for each in here.done if each.reload] != reloads:
            raise RuntimeError("there was a reload")
    figures: dict[str, object] = {"routes": count, "changes": changes}
    figures |= {"objects_to_serving_s": round(start, 3), "objects_to_serving_cpu_s": round(start_cpu, 3)}
    for name, took in found.items():
        for what, values in zip(("to_answer", "cpu"), map(sorted, zip(*took, strict=True)), strict=True):
            figures[f"{name}_{what}_ms_median"] = round(1000 * statistics.median(values), 2)
            figures[f"{name}_{what}_ms_worst"] = round(1000 * values[-1], 2)
    return figures


def changed(here: GatewaySite, which: list[int], pods: tuple[int, int] | None) -> list[tuple[float, float]]:
    """Move Services to the other of `pods`, or routes to the other Service, one by one."""
    found = []
    for number in which:
        name, host = f"web-{number}", HOST.format(number)
        if pods is None:
            first = ROUTE.format(name=name, host=host, path="/")
            texts = first, first.replace(f"{{name: {name}, port", "{name: other, port")
            before, after = (here.objects(text)[0] for text in texts)
        else:
            before, after = (here.objects(service(name, "127.0.0.1", pod))[1] for pod in pods)
        found.append(here.run(change(here, host, before, after)))
    return found


async def change(here: GatewaySite, host: str, before: object, after: object) -> tuple[float, float]:
    """Put an object and then the former one; return the seconds until the other Pod answers, and vipwire's CPU."""
    port = here.port("http")
    await ask(port, host)
    began, cpu = time.perf_counter(), time.process_time()
    here.put_object(after)
    await here.controller.wait_until_settled()
    cpu = time.process_time() - cpu
    while await ask(port, host) != b"1":  # noqa: ASYNC110  # of another process nobody is told
        await asyncio.sleep(0)
    took = time.perf_counter() - began
    here.put_object(before)
    await here.controller.wait_until_settled()
    return took, cpu


def churn(folder: Path, seconds: int) -> dict[str, object]:
    """Change Pods, weights and certificates under load. Raise RuntimeError for a failed request or a reload."""
    pods = free_port(), free_port()
    hosts = tuple(map(HOST.format, range(50)))
    with ExitStack() as stack:
        for port in pods:
            stack.enter_context(haproxy(folder, ANSWERING.format(port=port, text="x")))
        here = stack.enter_context(gateways(folder))
        put_routes(here, hosts, pods[0], "/")
        names = ", ".join(f"{{name: c{number}}}" for number in range(10))
        tls = f"{{name: tls, port: $tls, protocol: HTTPS, tls: {{certificateRefs: [{names}]}}}}"
        here.put(GATEWAY.replace("}]", f"}}, {tls}]"))
        for number in range(10):
            here.put(tls_secret(f"c{number}", f"c{number}.example.com"))
        here.put(SPLIT.format(50, 50))
        list_all(here)
        here.settle()
        asking = stack.enter_context(ThreadPoolExecutor(1))
        loaded = asking.submit(load, Case("churn", (*hosts, "split.example.com")), folder, here.port("http"), seconds)
        slices = [here.objects(service(f"web-{n}", "127.0.0.1", pod))[1] for pod in pods for n in range(len(hosts))]
        began = time.perf_counter()
        for number in range(1000):
            here.put_object(slices[number * 37 % len(slices)])
        here.settle()
        took = time.perf_counter() - began
        for weight in range(1, 101):
            here.put(SPLIT.format(weight, 100 - weight))
            here.settle()
        for number in range(100):
            here.put(tls_secret(f"c{number % 10}", f"c{number % 10}.example.com"))
            here.settle()
        everything = time.perf_counter() - began
        is_over = loaded.done()
        count, rate, p99 = loaded.result()
        if is_over:
            raise RuntimeError(f"the changes took {everything:.1f} s, longer than the load: --churn {seconds * 2}")
        if reloads := [each.reload for each in here.done if each.reload][1:]:
            raise RuntimeError(f"reloads: {reloads}")
    figures = {"1,000 Pods_s": took, "all_changes_s": everything, "requests_per_s": rate, "p99_ms": p99}
    return {**{name: round(value, 2) for name, value in figures.items()}, "requests": count}


def scale_before(checkout: str, count: int, changes: int) -> None:
    """Measure another checkout by this file."""
    environment = os.environ | {"PYTHONPATH": f"{checkout}/src:{checkout}"}
    numbers = ("--routes", str(count), "--changes", str(changes))
    command = (sys.executable, os.path.realpath(__file__), "--starts", "0", "--churn", "0", *numbers)
    subprocess.run(command, cwd=checkout, env=environment, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=9, help="of both processes")
    parser.add_argument("--rounds", type=int, default=3, help="of each start")
    parser.add_argument("--seconds", type=int, default=1)
    parser.add_argument("--routes", type=int, nargs="*", default=[1000], help="of the second part, for each run")
    parser.add_argument("--changes", type=int, default=50, help="of each kind in the second part")
    parser.add_argument("--churn", type=int, default=60, help="seconds of load in the third part; 0 leaves it out")
    parser.add_argument("--before", default="", help="another checkout of vipwire, for the second part")
    given = parser.parse_args()
    for case in (each for each in CASES if not each.sticky and not each.tls):
        found = []
        for _ in range(given.starts):
            with tempfile.TemporaryDirectory() as folder:
                found.append(once(case, Path(folder), given.rounds, given.seconds))
        if found:
            show(case.name, judged(found))
    for count in given.routes:
        with tempfile.TemporaryDirectory() as folder:
            show("scale", scale(Path(folder), count, given.changes))
        if given.before:
            print("before:", flush=True)
            scale_before(given.before, count, given.changes)
    if given.churn:
        with tempfile.TemporaryDirectory() as folder:
            show("1,000 Pods, 100 steps of a canary, 100 renewed certificates", churn(Path(folder), given.churn))
