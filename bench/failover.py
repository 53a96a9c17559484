"""What clients notice when a machine is lost: `python -m bench.failover`, as root (needs iproute2, nft; keepalived).

Three machines and a client on one Ethernet, all of them namespaces. node-1 runs `vipwire up`, the others `vipwire
join`. Each fault strikes the machine that owns a LoadBalancer address while a client opens a connection to it every
20 ms and forgets its neighbours all the time, as clients that have just come:

    kill            SIGKILL of vipwire on the owner
    cut             the owner's network is cut
    deaf, dumb      only what goes to the owner is lost; only what comes from it
    term            SIGTERM: the address is handed over
    back            the machine is there again, and takes its address back

The outage is the time from the start of the first connection that failed until one succeeds again. Beside it
keepalived, with its defaults (an advertisement a second), holds an address on the same machines and is struck by the
same cuts.

    --rounds N      afterwards N faults at random points, with pauses of the process (SIGSTOP) too. A raw socket asks
                    all the time who has the addresses: two machines that answer one question are two owners
"""

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vipwire.cluster.announce import arp, claimed_by_arp
from vipwire.cluster.announcing.choose import choose
from vipwire.lab.cluster import Lab
from vipwire.lab.continuous import Connection
from vipwire.lab.demo.apiserver import Standalone, program
from vipwire.lab.demo.process import Listened
from vipwire.lab.lan import port as lan_port
from vipwire.lab.topology import UNDERLAY, make_topology

NODES = ("node-1", "node-2", "node-3")
PORT, ECHO = 80, 8080
RIVAL = "10.0.0.200"
RIVAL_PORT = 8090
PATIENCE = 60.0
INTERVAL, TIMEOUT = 0.02, 0.4
POOL = [f"10.0.0.{number}" for number in range(64, 80)]
OWNED = {node: next(each for each in POOL if choose(each, NODES) == node) for node in NODES}
KEEPALIVED = """
global_defs {{ router_id {node}
 vrrp_garp_master_repeat 5 }}
vrrp_instance bench {{
  state BACKUP
  interface lan0
  virtual_router_id 51
  priority {priority}
  virtual_ipaddress {{ {address}/24 dev lan0 }}
}}
"""


class Client(threading.Thread):
    """Opens connections all the time, from a namespace."""

    def __init__(self, lab: Lab, address: str, number: int = PORT) -> None:
        super().__init__(daemon=True)
        self._lab, self._target = lab, (address, number)
        self._stop_asked = threading.Event()
        self.results: list[tuple[float, float, bool]] = []

    def run(self) -> None:
        """Connect until told to end."""
        with self._lab.inside("client"):
            asyncio.run(self._connect_all_the_time())

    async def _connect_all_the_time(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while not self._stop_asked.is_set():
                tasks.create_task(self._connect())
                await asyncio.sleep(INTERVAL)

    async def _connect(self) -> None:
        began, good = time.monotonic(), False
        with contextlib.suppress(OSError):
            async with asyncio.timeout(TIMEOUT):
                _, writer = await asyncio.open_connection(*self._target)
                good = True
                writer.transport.abort()
        self.results.append((began, time.monotonic(), good))

    def end(self) -> None:
        """End it."""
        self._stop_asked.set()
        self.join()

    def outage(self) -> tuple[float, int]:
        """Return the longest time in which connections failed, and how many did."""
        longest, first, failed = 0.0, 0.0, 0
        for began, ended, good in sorted(self.results):
            if good:
                if first:
                    longest = max(longest, ended - first)
                first = 0.0
            else:
                failed += 1
                first = first or began
        if first:
            longest = max(longest, time.monotonic() - first)
        return longest, failed


class Owners(threading.Thread):
    """Asks by ARP who has the addresses, and counts questions that two machines answer."""

    def __init__(self, lab: Lab) -> None:
        super().__init__(daemon=True)
        with lab.inside("client"):
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
            self._socket.bind(("lan0", 0x0806))
        self._stop_asked = threading.Event()
        self.questions, self.answered, self.doubles = 0, 0, list[str]()

    def run(self) -> None:
        """Ask until told to end."""
        hardware = self._socket.getsockname()[4]
        me = socket.inet_aton("10.0.0.4")
        while not self._stop_asked.is_set():
            for address in OWNED.values():
                packed = socket.inet_aton(address)
                with contextlib.suppress(OSError):
                    self._socket.send(arp(1, hardware, me, b"\xff" * 6, packed))
                found, until = set[bytes](), time.monotonic() + 0.02
                while (left := until - time.monotonic()) > 0:
                    self._socket.settimeout(left)
                    try:
                        frame = self._socket.recv(2048)
                    except OSError:  # nothing more comes
                        break
                    claim = claimed_by_arp(frame)
                    if claim and claim[1] == packed and frame[:6] == hardware:
                        found.add(claim[0])
                self.questions += 1
                self.answered += bool(found)
                if len(found) > 1:
                    self.doubles.append(f"{address}: {', '.join(each.hex(':') for each in sorted(found))}")

    def end(self) -> None:
        """End it."""
        self._stop_asked.set()
        self.join()
        self._socket.close()


class Machines:
    """The three machines."""

    def __init__(self, lab: Lab, folder: Path, kubectl: str) -> None:
        self.lab, self.folder = lab, folder
        self.here = Standalone(lab, "node-1", folder / "node-1", kubectl)
        self.joined: dict[str, Listened] = {}
        self.pids: dict[str, subprocess.Popen[Any]] = {}
        self.rivals: dict[str, subprocess.Popen[Any]] = {}

    def start(self) -> None:
        """Start all three."""
        flags = ("--node-name", "node-1", "--bind-address", "0.0.0.0", "--no-dns", "--announce-interface", "lan0")  # noqa: S104
        self.here.start(*flags, "--load-balancer-range", "10.0.0.64/28")
        for node in NODES[1:]:
            command = [sys.executable, "-m", "vipwire", "token", "create", "--data-dir", str(self.here.folder)]
            self.join(node, *shlex.split(self.lab.run("node-1", command).stdout)[2:], "--node-name", node)
        self.here.apply([found for node in NODES for found in _service(node)])
        for node in NODES:
            self.until_owned(OWNED[node], node)

    def join(self, node: str, *words: str) -> None:
        """Run `vipwire join` on a machine."""
        folder = self.folder / node
        command = [
            sys.executable,
            "-m",
            "vipwire",
            "join",
            *words,
            "--data-dir",
            str(folder),
            "--announce-interface",
            "lan0",
        ]
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "text": True}
        self.pids[node] = self.lab.popen(node, command, stderr=subprocess.STDOUT, **options)
        self.joined[node] = Listened(node, self.pids[node])
        self.joined[node].until(lambda said: any(line.startswith("joined as") for line in said), PATIENCE)

    def owner(self, address: str) -> str:
        """Tell who has an address."""
        lease = f"vipwire-address-{address.replace('.', '-')}"
        words = (
            "get",
            "lease",
            lease,
            "-n",
            "kube-system",
            "-o",
            "jsonpath={.spec.holderIdentity}",
            "--ignore-not-found",
        )
        return self.here.kubectl(*words)

    def until_owned(self, address: str, node: str) -> None:
        """Wait until a machine has an address."""
        end = time.monotonic() + PATIENCE
        while self.owner(address) != node:
            if time.monotonic() > end:
                raise SystemExit(f"{address} is {self.owner(address)}'s, and not {node}'s")
            time.sleep(0.1)

    def signal(self, node: str, number: signal.Signals) -> None:
        """Send a signal to vipwire on a machine."""
        self.pids[node].send_signal(number)

    def cut(self, node: str, how: str) -> None:
        """Cut a machine off: its links down, or what goes to it, or comes from it, dropped."""
        if how == "cut":
            for link in (lan_port(node), node):
                self._under("ip", "link", "set", link, "down")
            return
        hook = "egress" if how == "deaf" else "ingress"
        chains = "".join(
            f'chain {name} {{ type filter hook {hook} device "{link}" priority 0; drop; }}\n'
            for name, link in (("lan", lan_port(node)), ("routed", node))
        )
        self._under("nft", f"table netdev cut-{node} {{ {chains} }}")

    def heal(self, node: str) -> None:
        """Undo a cut."""
        for link in (lan_port(node), node):
            self._under("ip", "link", "set", link, "up")
        self.lab.run(UNDERLAY, ["nft", "delete", "table", "netdev", f"cut-{node}"], check=False)
        # what the kernel forgot with the link
        self._under("ip", "neigh", "replace", self.lab.address(node), "lladdr", "02:00:00:00:00:02", "dev", node)
        self._under("ip", "route", "replace", self.lab.address(node), "dev", node)
        number = node[-1]
        self._under("ip", "route", "replace", f"10.244.{number}.0/24", "via", self.lab.address(node), "dev", node)

    def start_rivals(self) -> None:
        """Run keepalived on all three."""
        for node in NODES:
            self.lab.serve(node, [RIVAL_PORT])
        for priority, node in ((100, "node-1"), (101, "node-3"), (110, "node-2")):
            path = self.folder / f"keepalived-{node}.conf"
            path.write_text(KEEPALIVED.format(node=node, priority=priority, address=RIVAL))
            pids = (f"--pid={self.folder}/{node}.pid", f"--vrrp_pid={self.folder}/{node}-vrrp.pid")
            command = ["keepalived", "-n", "-l", "-P", "-f", str(path), *pids]
            log = (self.folder / f"keepalived-{node}.log").open("w")
            self.rivals[node] = self.lab.popen(node, command, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while RIVAL not in self.lab.run("node-2", ["ip", "addr", "show", "lan0"]).stdout:
            if time.monotonic() > end:
                raise SystemExit("keepalived does not take its address")
            time.sleep(0.2)
        time.sleep(5)

    def _under(self, *command: str) -> None:
        self.lab.run(UNDERLAY, command)


def _service(owner: str) -> Iterator[dict[str, Any]]:
    """Write a Service whose address `owner` has, with endpoints on the other machines."""
    name = f"on-{owner}"
    ports = [{"port": PORT, "targetPort": ECHO}]
    spec = {"type": "LoadBalancer", "loadBalancerIP": OWNED[owner], "ports": ports}
    yield {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
    ends = [
        {"addresses": [f"10.244.{node[-1]}.11"], "nodeName": node, "conditions": {"ready": True}}
        for node in NODES
        if node != owner
    ]
    labels = {"kubernetes.io/service-name": name}
    meta = {"name": name, "labels": labels}
    kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    yield kind | {"metadata": meta, "endpoints": ends, "ports": [{"port": ECHO}]}


def elsewhere(lab: Lab, victim: str, stack: contextlib.ExitStack) -> Connection:
    """Open a connection to an address of another machine's, and an endpoint that the victim does not run."""
    while True:
        found = stack.enter_context(lab.connect("client", OWNED["node-3"], PORT))
        if lab.topology.node_of(found.answer.pod) != victim:
            return found


@contextlib.contextmanager
def forgetting(lab: Lab) -> Iterator[None]:
    """Make the client forget its neighbours several times a second: it is as clients that have just come."""
    stop = threading.Event()

    def forget() -> None:
        while not stop.wait(0.3):
            lab.run("client", ["ip", "neigh", "flush", "dev", "lan0"], check=False)

    thread = threading.Thread(target=forget, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def strike(machines: Machines, fault: str, victim: str = "node-2") -> dict[str, Any]:
    """Strike a machine while clients connect; return what they noticed."""
    lab, address = machines.lab, OWNED[victim]
    clients = [Client(lab, address)] + ([Client(lab, RIVAL, RIVAL_PORT)] if machines.rivals else [])
    for each in clients:
        each.start()
    with contextlib.ExitStack() as stack:
        other = elsewhere(lab, victim, stack)
        stack.enter_context(forgetting(lab))
        time.sleep(1)
        match fault:
            case "kill" | "term":
                machines.joined[victim].end(PATIENCE, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            case "back":
                machines.join(victim)
                machines.until_owned(address, victim)
            case _:
                machines.cut(victim, fault)
        time.sleep(6)
        moved = machines.owner(address) == victim if fault == "back" else machines.owner(address) != victim
        alive = other.exchange(b"still there\n", 5.0) == b"still there\n"
    for each in clients:
        each.end()
    found: dict[str, Any] = {"fault": fault, "moved": moved, "other connection lives": alive}
    found["outage"], found["failed"] = clients[0].outage()
    found["connections"] = len(clients[0].results)
    if len(clients) > 1 and fault in ("cut", "deaf", "dumb"):
        found["keepalived"] = clients[1].outage()[0]
    return found


def heal(machines: Machines, fault: str, victim: str = "node-2") -> None:
    """Make all well again."""
    if fault in ("cut", "deaf", "dumb"):
        machines.heal(victim)
    machines.until_owned(OWNED[victim], victim)
    time.sleep(2)


def random_rounds(machines: Machines, rounds: int, seed: int) -> dict[str, Any]:
    """Strike at random points, and watch who answers for the addresses."""
    chance, owners = random.Random(seed), Owners(machines.lab)
    owners.start()
    counts: dict[str, int] = {}
    for _ in range(rounds):
        node, fault = chance.choice(NODES[1:]), chance.choice(("kill", "term", "cut", "deaf", "dumb", "stop"))
        counts[fault] = counts.get(fault, 0) + 1
        time.sleep(chance.uniform(0, 0.5))
        if fault in ("kill", "term"):
            machines.joined[node].end(PATIENCE, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            time.sleep(chance.uniform(0, 3))
            machines.join(node)
        elif fault == "stop":
            machines.signal(node, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 5))
            machines.signal(node, signal.SIGCONT)
        else:
            machines.cut(node, fault)
            time.sleep(chance.uniform(0, 5))
            machines.heal(node)
        time.sleep(chance.uniform(0, 2))
    owners.end()
    return {
        "rounds": rounds,
        "faults": counts,
        "questions": owners.questions,
        "answered": owners.answered,
        "two owners": owners.doubles,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="*", default=["kill", "back", "term", "back", "cut", "deaf", "dumb"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-keepalived", action="store_true")
    arguments = parser.parse_args()
    kubectl = program("kubectl")
    if kubectl is None:
        raise SystemExit("there is no kubectl here")
    with tempfile.TemporaryDirectory() as folder, Lab(make_topology((1, 1, 1), (ECHO,), lan=True)) as lab:
        machines = Machines(lab, Path(folder), kubectl)
        machines.start()
        if not arguments.no_keepalived:
            machines.start_rivals()
        outages: dict[str, list[float]] = {}
        for fault in arguments.faults * arguments.repeat:
            found = strike(machines, fault)
            print(json.dumps(found), flush=True)
            outages.setdefault(fault, []).append(found["outage"])
            if "keepalived" in found:
                outages.setdefault(f"{fault}, keepalived", []).append(found["keepalived"])
            if fault not in ("kill", "term"):
                heal(machines, fault)
        for fault, each in outages.items():
            print(
                f"{fault:20} {len(each):3} times   outage "
                f"{statistics.median(each):5.2f} s median, {max(each):5.2f} s at most"
            )
        if arguments.rounds:
            print(json.dumps(random_rounds(machines, arguments.rounds, arguments.seed), indent=2))


if __name__ == "__main__":
    main()
