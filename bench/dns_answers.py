"""How many DNS answers a second one core gives, and how long each takes, beside a plain echo of the same packets.

    python -m bench.dns_answers [--seconds 5] [--services 1000] [--window 32]

A server process answers on loopback; this process asks, with a bounded number of questions under way, each a random
Service's. The echo is the same read-and-send loop without an answer: what Python and the kernel take in any case.
Rates are for each second of the server's own CPU time as well, since client and server share the machine with others.
"""

import argparse
import json
import multiprocessing
import os
import random
import resource
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import dns.message

DOMAIN = "cluster.local"


def objects(count: int) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for index in range(count):
        spec = {"clusterIP": f"10.96.{index // 250}.{index % 250 + 1}", "ports": [{"name": "http", "port": 80}]}
        meta = {"name": f"service-{index}", "namespace": f"team-{index % 10}"}
        made.append({"metadata": meta, "spec": spec})
    return made


def answer_dns(count: int, told: Connection) -> None:
    import asyncio  # noqa: PLC0415  # the server's process only

    from vipwire.kube.resource import ObjectReader  # noqa: PLC0415
    from vipwire.process_lifecycle import cyclic_garbage  # noqa: PLC0415
    from vipwire_up.dns.objects import SERVICES, SLICES  # noqa: PLC0415
    from vipwire_up.dns.run import Emit, serve_dns  # noqa: PLC0415
    from vipwire_up.dns.settings import Settings  # noqa: PLC0415

    async def feed(emit: Emit) -> None:
        began = time.process_time()
        emit(ObjectReader(SERVICES).build_listed_event(("", json.dumps(item).encode()) for item in objects(count)))
        emit(ObjectReader(SLICES).build_listed_event(()))
        told.send({"load": time.process_time() - began, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})
        await asyncio.get_running_loop().create_future()

    cyclic_garbage.collect_rarely()  # as `vipwire dns` does
    settings = Settings(rate=0, addresses=("127.0.0.1",), port=0, advertised=("127.0.0.1",))
    asyncio.run(serve_dns(settings, feed, lambda port, _: told.send({"port": port})))


def serve_echo(_count: int, told: Connection) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, selectors.DefaultSelector() as selector:
        server.bind(("127.0.0.1", 0))
        server.setblocking(False)  # noqa: FBT003  # the socket module's signature
        selector.register(server, selectors.EVENT_READ)
        told.send({"port": server.getsockname()[1]})
        told.send({"load": 0.0, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss})
        while True:
            selector.select()
            for _ in range(64):
                try:
                    data, asker = server.recvfrom(65535)
                except BlockingIOError:
                    break
                server.sendto(data, asker)


def questions(count: int) -> list[bytes]:
    return [
        dns.message.make_query(f"service-{index}.team-{index % 10}.svc.{DOMAIN}", "A", use_edns=0).to_wire()
        for index in range(count)
    ]


def ask(port: int, wires: list[bytes], seconds: float, window: int) -> tuple[int, list[float], int]:
    """Keep `window` questions in flight for `seconds`; return the number of answers, their times, and losses."""
    lost, times, began = 0, [], time.perf_counter()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", port))
        client.settimeout(1)
        sent: dict[int, float] = {}
        number = 0
        while time.perf_counter() - began < seconds:
            while len(sent) < window:
                number = (number + 1) & 0xFFFF
                client.send(number.to_bytes(2) + random.choice(wires)[2:])
                sent[number] = time.perf_counter()
            try:
                data = client.recv(4096)
            except TimeoutError:
                lost += len(sent)
                sent.clear()
                continue
            at = sent.pop(int.from_bytes(data[:2]), None)
            if at is not None:
                times.append(time.perf_counter() - at)
    return len(times), times, lost


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123  # a line of the kernel's
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(name: str, target: Callable[[int, Connection], None], options: argparse.Namespace) -> float:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=target, args=(options.services, theirs), daemon=True)
    process.start()
    port, loaded = ours.recv()["port"], ours.recv()
    wires = questions(options.services)
    ask(port, wires, 0.5, options.window)
    cpu = cpu_seconds(process.pid or 0)
    answers, times, lost = ask(port, wires, options.seconds, options.window)
    cpu = cpu_seconds(process.pid or 0) - cpu
    process.terminate()
    process.join()
    times.sort()
    p99 = times[int(len(times) * 0.99)] * 1000
    print(
        f"{name:5} {answers / options.seconds:8,.0f} answers/s  {answers / cpu:8,.0f} per CPU second  "
        f"median {statistics.median(times) * 1000:.2f} ms  p99 {p99:.2f} ms  lost {lost}  "
        f"loaded in {loaded['load']:.2f} s CPU, {loaded['memory'] // 1024} MB"
    )
    return answers / cpu


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--window", type=int, default=32, help="questions under way at a time")
    options = parser.parse_args()
    served, echoed = measure("dns", answer_dns, options), measure("echo", serve_echo, options)
    print(f"ratio {served / echoed:.2f} of the echo, by CPU time of the server")
    return 0


if __name__ == "__main__":
    sys.exit(main())
