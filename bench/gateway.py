"""What `vipwire gateway` costs: `python -m bench.gateway` (needs haproxy and wrk; loopback only).

The same as bench.ingress measures, for HTTPRoutes: HAProxy with the configuration of vipwire beside one by hand for
the same sites; from objects to serving with some HTTPRoutes and their Services; then one change at a time, of an
endpoint or of a route's backendRef, until HAProxy answers from the new Pod. Then many changes under load: none may
need a reload, no request may fail.

    python -m bench.gateway --starts 0 --routes 20 10000 --before ../released   # another checkout beside this one
"""

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bench.ingress import (
    ANSWERING,
    CASES,
    HOSTS,
    SERVICES,
    Case,
    Start,
    Took,
    by_hand,
    change,
    haproxy,
    judged,
    load,
    measure_before,
    parser_of,
    resident,
    show,
    take_turns,
    told,
    worker_at,
)
from tests.fakes.ports import free_port
from tests.l7.gateway.site import GatewaySite, gateways, list_all, service, tls_secret

from vipwire.process_lifecycle import cyclic_garbage

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
  rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: {to}, port: 8080}}]}}]
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


def put_routes(here: GatewaySite, hosts: tuple[str, ...], pod: int, path: str) -> None:
    """Put a route for each host, and Services, which routes share if there are too many for HAProxy."""
    here.put(GATEWAY)
    # YAML takes too long for thousands of objects.
    texts = [json.dumps(each) for each in here.objects(service("NAME", "127.0.0.1", pod))]
    (route,) = map(json.dumps, here.objects(ROUTE.format(name="r-NUMBER", host="HOST", path=path, to="NAME")))
    for number, host in enumerate(hosts):
        name = f"web-{number % SERVICES}"
        for text in (*texts, route) if number < SERVICES else (route,):
            filled = text.replace("NAME", name).replace("HOST", host).replace("NUMBER", f"{number}")
            here.put_object(json.loads(filled))


def once(case: Case, folder: Path, rounds: int, seconds: int) -> Start:
    """Start both configurations and measure them."""
    pod, hand = free_port(), free_port()
    with ExitStack() as stack:
        stack.enter_context(haproxy(folder, ANSWERING.format(port=pod, text="x" * 512)))
        by_hand_pid = stack.enter_context(haproxy(folder, by_hand(case, folder, hand, pod)))
        here = stack.enter_context(gateways(folder))
        put_routes(here, case.hosts, pod, "/app")
        list_all(here)
        here.settle()
        worker = here.run(worker_at(here.haproxy.socket))
        runs = {"by hand": (hand, by_hand_pid), "vipwire": (here.port("http"), worker)}
        return take_turns(case, folder, runs, rounds, seconds)


def scale(folder: Path, count: int, changes: int) -> dict[str, object]:
    """Start with many HTTPRoutes and their Services; change one endpoint and one backendRef at a time."""
    pods = free_port(), free_port()
    with ExitStack() as stack:
        for number, port in enumerate(pods):
            stack.enter_context(haproxy(folder, ANSWERING.format(port=port, text=number)))
        here = stack.enter_context(gateways(folder))
        put_routes(here, tuple(map(HOSTS.format, range(count - 1))), pods[0], "/")
        here.put(service("other", "127.0.0.1", pods[1]))
        here.put(ROUTE.format(name="other", host="other.example.com", path="/", to="other"))
        began, cpu = time.perf_counter(), time.process_time()
        cyclic_garbage.disable_collection()
        list_all(here)
        here.settle()
        cyclic_garbage.collect_rarely()
        start = time.perf_counter() - began, time.process_time() - cpu
        memory, reloads = resident(), [each.reload for each in here.done if each.reload]
        which = [number * 37 % (count - 1) for number in range(changes)]
        found = {"endpoint": changed(here, which, pods), "backend_ref": changed(here, which, None)}
        if [each.reload for each in here.done if each.reload] != reloads:
            raise RuntimeError("there was a reload")
    return {"routes": count} | told(changes, start, memory, found)


def changed(here: GatewaySite, which: list[int], pods: tuple[int, int] | None) -> list[Took]:
    """Move Services to the other of `pods`, or routes to the other Service, one by one."""
    found = []
    for number in which:
        name, host = f"web-{number % SERVICES}", HOSTS.format(number)
        if pods is None:
            texts = (ROUTE.format(name=f"r-{number}", host=host, path="/", to=to) for to in (name, "other"))
            before, after = (here.objects(text)[0] for text in texts)
        else:
            before, after = (here.objects(service(name, "127.0.0.1", pod))[1] for pod in pods)
        asked = here.port("http"), host
        found.append(here.run(change(here.controller, here.put_object, asked, before, after)))
    return found


def churn(folder: Path, seconds: int) -> dict[str, object]:
    """Change Pods, weights and certificates under load. Raise RuntimeError for a failed request or a reload."""
    pods = free_port(), free_port()
    hosts = tuple(map(HOSTS.format, range(50)))
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


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--routes", type=int, nargs="*", default=[1000], help="of the second part, for each run")
    parser.add_argument("--churn", type=int, default=60, help="seconds of load in the third part; 0 leaves it out")
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
            numbers = ("--routes", str(count), "--changes", str(given.changes))
            measure_before(given.before, "bench.gateway", "--churn", "0", *numbers)
    if given.churn:
        with tempfile.TemporaryDirectory() as folder:
            show("1,000 Pods, 100 steps of a canary, 100 renewed certificates", churn(Path(folder), given.churn))
