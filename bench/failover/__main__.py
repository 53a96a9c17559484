"""What clients notice when a machine is lost: `python -m bench.failover`, as root (needs iproute2, nft; keepalived).

Three machines and a client on one Ethernet, all of them namespaces. node-1 runs `vipwire up`, the others `vipwire
join`; with --etcd each machine has a member of etcd and an API server, as in docs/three-servers.md. Each fault
strikes a machine while a client opens a connection every 20 ms to the LoadBalancer address that it owns, and forgets
its neighbours all the time, as clients that have just come. With --etcd that machine also has etcd's leader and runs
the controllers, and a client of every other machine's API server writes all the time.

    kill            SIGKILL of vipwire, and of etcd, on the machine
    cut             the machine's network is cut
    deaf, dumb      only what goes to it is lost; only what comes from it
    term            SIGTERM of vipwire: the address is handed over
    back            the machine is there again, and takes its address back

The outage is the time from the start of the first connection that failed until one succeeds again; "API" is the
longest time that a write took, with its repetitions. Beside it keepalived, with its defaults (an advertisement a
second), holds an address on the same machines and is struck by the same cuts.

    --moves N       N graceful moves instead: SIGTERM and back in turn
    --rounds N      afterwards N faults at random points, with pauses of the process (SIGSTOP) too. A raw socket asks
                    all the time who has the addresses: two machines that answer one question are two owners. With
                    --etcd clients write meanwhile, and what was acknowledged must be there: see rounds.py
"""

import argparse
import contextlib
import errno
import json
import random
import signal
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.failover.clients import PORT, Client, Owners, Writer, forgetting
from bench.failover.machines import ECHO, NODES, OWNED, RIVAL, RIVAL_PORT, Machines
from bench.failover.rounds import rounds
from bench.failover.servers import Servers

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.state import find_program
from vipwire_lab.namespaces.topology import make_topology

_CUTS = ("cut", "deaf", "dumb")


def elsewhere(lab: Lab, victim: str, stack: contextlib.ExitStack) -> Connection:
    """Open a connection to another machine's address, and to an endpoint that the victim does not run."""
    other = next(node for node in reversed(NODES) if node != victim)
    while True:
        found = stack.enter_context(lab.connect("client", OWNED[other], PORT))
        if lab.topology.node_of(found.answer.pod) != victim:
            return found


def lives(connection: Connection) -> bool:
    """Report whether a connection still works. The client may have just forgotten a neighbour."""
    for last in (False, True):
        try:
            return connection.exchange(b"still there\n", 5.0) == b"still there\n"
        except OSError as error:
            if last or error.errno != errno.EHOSTUNREACH:
                return False
    return False


def strike(machines: Machines, fault: str, victim: str, seconds: float) -> dict[str, Any]:
    """Apply a fault to a machine while clients connect; return their observations of these seconds."""
    lab, address = machines.lab, OWNED[victim]
    clients = [Client(lab, address)] + ([Client(lab, RIVAL, RIVAL_PORT)] if machines.rivals else [])
    writers = [Writer(lab, node, machines.data(node)) for node in _servers(machines) if node != victim]
    running: list[Client | Writer] = [*clients, *writers]
    for each in running:
        each.start()
    with contextlib.ExitStack() as stack:
        other = elsewhere(lab, victim, stack)
        stack.enter_context(forgetting(lab))
        time.sleep(1)
        began = time.strftime("%H:%M:%S", time.gmtime())
        match fault:
            case "kill" | "term":
                machines.end(victim, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            case "back":
                machines.bring_back(victim)
                machines.until_owned(address, victim)
            case _:
                machines.cut(victim, fault)
        time.sleep(seconds)
        moved = machines.owner(address) == victim if fault == "back" else machines.owner(address) != victim
        alive = lives(other)
    for each in running:
        each.end()
    found: dict[str, Any] = {"at": began, "fault": fault, "machine": victim}
    found |= {"moved": moved, "other connection lives": alive}
    found["outage"], found["failed"] = clients[0].outage()
    found["connections"] = len(clients[0].results)
    if writers:
        found["API"] = max(each.longest for each in writers)
    if len(clients) > 1 and fault in _CUTS and victim == "node-2":
        found["keepalived"] = clients[1].outage()[0]
    return found


def _servers(machines: Machines) -> tuple[str, ...]:
    return NODES if isinstance(machines, Servers) else NODES[:1]


def heal(machines: Machines, fault: str, victim: str) -> None:
    if fault in _CUTS:
        machines.heal(victim)
    machines.until_owned(OWNED[victim], victim)
    time.sleep(2)


def one_by_one(machines: Machines, faults: list[str], seconds: float) -> None:
    """Apply each fault in turn, and print the clients' observations, and the medians."""
    outages: dict[str, list[float]] = {}
    victim, lost = "", Counter[str]()
    for fault in faults:
        victim = victim if fault == "back" else machines.choose_victim()
        found = strike(machines, fault, victim, seconds)
        print(json.dumps(found), flush=True)
        lost[fault] += found["failed"]
        for what, name in (("outage", fault), ("API", f"{fault}, API"), ("keepalived", f"{fault}, keepalived")):
            if what in found:
                outages.setdefault(name, []).append(found[what])
        if fault not in ("kill", "term"):
            heal(machines, fault, victim)
    for fault, each in sorted(outages.items()):
        print(
            f"{fault:20} {len(each):3} times   outage {statistics.median(each):5.2f} s median, "
            f"{max(each):5.2f} s at most" + (f"   {lost[fault]} connections failed" if fault in lost else "")
        )


def random_rounds(machines: Machines, rounds: int, seed: int) -> dict[str, Any]:
    """Apply random faults, and watch which machines answer for the addresses."""
    chance, owners = random.Random(seed), Owners(machines.lab, tuple(OWNED.values()))
    owners.start()
    counts = Counter[str]()
    for number in range(rounds):
        node, fault = chance.choice(machines.victims), chance.choice(("kill", "term", *_CUTS, "stop"))
        counts[fault] += 1
        time.sleep(chance.uniform(0, 0.5))
        if fault in ("kill", "term"):
            machines.end(node, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
            time.sleep(chance.uniform(0, 3))
            machines.bring_back(node)
        elif fault == "stop":
            machines.signal(node, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 5))
            machines.signal(node, signal.SIGCONT)
        else:
            machines.cut(node, fault)
            time.sleep(chance.uniform(0, 5))
            machines.heal(node)
        time.sleep(chance.uniform(0, 2))
        if number % 10 == 9:
            print(f"round {number + 1}: {owners.questions} questions, doubles {owners.doubles}", flush=True)
    owners.end()
    doubles = {address: len(times) for address, times in owners.doubles.items()}
    return {
        "rounds": rounds,
        "faults": counts,
        "questions": owners.questions,
        "answered": owners.answered,
        "answered by two": doubles,
        "longest time with two owners": owners.longest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", nargs="*", default=["kill", "back", "term", "back", "cut", "deaf", "dumb"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--etcd", action="store_true", help="each machine has a member of etcd and an API server")
    parser.add_argument("--moves", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path, help="a folder for what the processes said")
    parser.add_argument("--no-keepalived", action="store_true")
    arguments = parser.parse_args()
    kubectl = find_program("kubectl")
    if kubectl is None:
        raise SystemExit("there is no kubectl here")
    with tempfile.TemporaryDirectory() as folder, Lab(make_topology((1, 1, 1), (ECHO,), lan=True)) as lab:
        machines = (Servers if arguments.etcd else Machines)(lab, Path(folder), kubectl)
        try:
            machines.start()
            if not arguments.no_keepalived:
                machines.start_rivals()
            faults = ["term", "back"] * (arguments.moves // 2) if arguments.moves else arguments.faults
            one_by_one(machines, faults * arguments.repeat, 3.0 if arguments.moves else 6.0)
            if arguments.rounds and isinstance(machines, Servers):
                print(json.dumps(rounds(machines, arguments.rounds, arguments.seed), indent=2))
            elif arguments.rounds:
                print(json.dumps(random_rounds(machines, arguments.rounds, arguments.seed), indent=2))
        finally:
            if arguments.logs:
                machines.save_logs(arguments.logs)
            machines.close()


if __name__ == "__main__":
    main()
