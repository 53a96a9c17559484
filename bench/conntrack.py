"""How long it takes to find the stale ones among many flows: in Python alone, and with the kernel.

    python bench/conntrack.py            decode and judge 100,000 encoded flows; figures as ratios to a bare walk
    python bench/conntrack.py --kernel   sweep a real table too, in a network namespace of its own (needs root)

A bare walk reads the header of each attribute with `struct` and does nothing else: the least that any decoder written
as a loop over attributes can cost.
"""

import argparse
import ctypes
import random
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence

from tests.fakes.conntrack import encode_flow

from vipwire.linux.conntrack.flows import FlowTable
from vipwire.linux.conntrack.stale import Staleness, UdpFrontends
from vipwire.linux.netlink.conntrack import Flow, FlowDecoder, decode
from vipwire.model.net import Address, Family, Protocol, parse_address

FLOWS = 100_000
SERVICES = 10_000
ROUNDS = 5
HEADER = struct.Struct("=HH")


def flows() -> list[Flow]:
    chance = random.Random(1)
    made = []
    for index in range(FLOWS):
        client, pod = Address(chance.randbytes(4)), Address(chance.randbytes(4))
        vip = vip_of(chance.randrange(SERVICES))
        ends = (client, 1024 + index % 60000, vip, 53, pod, 53, client, 1024 + index % 60000)
        made.append(Flow(Protocol.UDP, *ends, status=0x1A8, timeout=29, identifier=index))
    return made


def vip_of(index: int) -> Address:
    return Address((0x0A600000 + index).to_bytes(4))


def staleness(made: Sequence[Flow]) -> Staleness:
    """Make an expectation in which a serving endpoint answers all flows but each hundredth."""
    serving: dict[Address, set[tuple[Address, int]]] = {}
    for flow in made:
        serving.setdefault(flow.destination, set())
        if flow.identifier % 100:
            serving[flow.destination].add((flow.reply_source, flow.reply_source_port))
    frontends: UdpFrontends = {(vip, 53): frozenset(pods) for vip, pods in serving.items()}
    return Staleness(frontends)


def bare_walk(messages: Iterable[memoryview]) -> None:
    for message in messages:
        at, end = 4, len(message)
        while at < end:
            at += (HEADER.unpack_from(message, at)[0] + 3) & ~3


def best(work: Callable[[], object]) -> float:
    """Return the least CPU seconds of several rounds, because other programs use the machine too."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def in_python() -> None:
    made = flows()
    stale = staleness(made)
    messages = [memoryview(encode_flow(flow)) for flow in made]
    decoder = FlowDecoder()
    if sum(stale(decoder.decode(message)) for message in messages) != FLOWS // 100:
        raise SystemExit("the wrong flows are stale")
    walk = best(lambda: bare_walk(messages))
    rows = {
        "bare walk over the headers": walk,
        "decode, attribute by attribute": best(lambda: [0 for message in messages if decode(message) is None]),
        "FlowDecoder.decode": best(lambda: [0 for message in messages if decoder.decode(message) is None]),
        "the same, and judge": best(lambda: [0 for message in messages if stale(decoder.decode(message))]),
    }
    print(f"{FLOWS:,} UDP flows to {SERVICES:,} frontends, CPU seconds and ratio to the bare walk")
    for name, seconds in rows.items():
        print(f"  {name:32} {seconds:6.3f} s  {seconds / walk:5.2f}  ({seconds / FLOWS * 1e6:.2f} µs a flow)")


def with_kernel() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):  # CLONE_NEWNET
        raise SystemExit("a network namespace needs root")
    rules = b"table inet t { chain o { type filter hook output priority 0; ct state new; }; }\n"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["nft", "-f", "-"], input=rules, check=True)
    pod = (parse_address("10.1.1.1"), 53)
    with FlowTable() as table, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.bind(("127.0.0.1", 0))
        one = Staleness({(parse_address("127.200.0.1"), 7): frozenset({pod})})
        ranges = {
            (parse_address(f"127.1.{high}.{low}"), 9): frozenset({pod}) for high in range(4) for low in range(250)
        }
        report("one frontend changed, empty table", table, one)
        for index in range(FLOWS):
            client.sendto(b"?", (f"127.1.{index // 250 % 256}.{index % 250}", 1000 + index // 64000 * 1000))
        held = sum(1 for _ in table.list_flows(Family.IPV4))
        report(f"one frontend changed, {held:,} flows", table, one)
        everything: UdpFrontends = {
            **{(address, port): frozenset({pod}) for (address, _) in ranges for port in (1000, 2000)},
            **{(parse_address("127.0.0.9"), port): frozenset({pod}) for port in range(10, 20)},
        }
        report(f"{len(everything):,} frontends changed, {held:,} flows", table, Staleness(everything))


def report(name: str, table: FlowTable, stale: Staleness) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    swept = table.delete_judged(stale)
    wall, used = time.perf_counter() - start, time.process_time() - cpu
    print(f"  {name:40} {wall * 1e3:7.1f} ms ({used * 1e3:.1f} ms CPU)  {swept}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", action="store_true", help="sweep a real table too (needs root)")
    arguments = parser.parse_args()
    in_python()
    if arguments.kernel:
        with_kernel()
