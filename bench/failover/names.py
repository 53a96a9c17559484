"""Machines that come under a name of another one: `python -m bench.failover.names --rounds N --seed S`, as root.

Three API servers over three members of etcd, two machines that joined, and a spare one, all of them namespaces. A
round starts a second API server of a name or a copy of a machine on the spare one, which must end with the reason;
or it cuts a machine off, kills or ends it, and undoes that. After each round every address must be answered for by
one machine, and no two may have answered one question for longer than a hand-over takes.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from bench.failover.clients import Owners
from bench.failover.machines import ANNOUNCE, ECHO, NODES, OWNED, PATIENCE, UP
from bench.failover.servers import STORE, Servers

from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.state import find_program
from vipwire_lab.namespaces.topology import make_topology

JOINED: Final = ("node-4", "node-5")
SPARE: Final = "node-6"
HANDED_OVER: Final = 1.5
_KINDS: Final = ("second server", "copy", "cut", "deaf", "dumb", "killed", "ended")


class Named(Servers):
    """Three servers, and machines that joined them."""

    words: tuple[str, ...] = ()

    def join(self, node: str) -> None:
        """Start a joined machine, or let it join."""
        words = () if (self.data(node) / "member.json").exists() else self.words
        flags = ("--node-name", node, "--node-lease-seconds", "3", "--data-dir", str(self.data(node)))
        self.run(node, "joined as", "join", *words, *flags, *ANNOUNCE)

    def until_renewed(self, node: str) -> None:
        """Wait until a machine renews its name's Lease: after a cut, a rival may still take it over."""
        words = ("get", "lease", node, "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}")
        end, first = time.monotonic() + PATIENCE, self.kubectl(*words)
        while self.kubectl(*words) == first:
            if time.monotonic() > end:
                raise SystemExit(f"{node} does not renew its Lease")
            time.sleep(0.2)

    def refuses(self, rival: str) -> str:
        """Start a rival of a machine on the spare one; return its error. Raise if it does not end."""
        self.until_renewed(rival)
        folder = self.folder / "rival"
        shutil.rmtree(folder, ignore_errors=True)
        if rival in JOINED:
            shutil.copytree(self.data(rival), folder)
            words: tuple[str, ...] = ("join", "--node-lease-seconds", "3", *ANNOUNCE)
        else:
            (folder / "pki").mkdir(parents=True)
            for name in ("ca.crt", "ca.key"):
                shutil.copy(self.data(rival) / "pki" / name, folder / "pki")
            words = (*UP, *STORE, "--node-name", rival)
        command = [sys.executable, "-m", "vipwire", *words, "--data-dir", str(folder)]
        done = self.lab.run(SPARE, command, check=False, timeout=PATIENCE)
        if done.returncode != 1 or f"is Node {rival}" not in done.stderr:
            raise SystemExit(f"a rival of {rival} ended with {done.returncode}: {done.stderr}")
        return done.stderr.splitlines()[-1]


def strike(machines: Named, kind: str, chance: random.Random) -> str:
    """Play one round; return the machine it hit."""
    if kind in ("second server", "copy"):
        node = chance.choice(NODES if kind == "second server" else JOINED)
        machines.refuses(node)
        return node
    node, seconds = chance.choice((*NODES, *JOINED)), chance.uniform(0.5, 6)
    if kind in ("cut", "deaf", "dumb"):
        machines.cut(node, kind)
        time.sleep(seconds)
        machines.heal(node)
        return node
    machines.end_server(node, signal.SIGKILL if kind == "killed" else signal.SIGTERM)
    time.sleep(seconds)
    if node in JOINED:
        machines.join(node)
    else:
        machines.bring_back(node)
    return node


def check(owners: Owners) -> None:
    """Wait until every address has an owner. Raise SystemExit after too long with two owners or none."""
    owners.seen.clear()
    end = time.monotonic() + PATIENCE
    while owners.seen != set(OWNED.values()):
        if time.monotonic() > end:
            raise SystemExit(f"nobody answers for {set(OWNED.values()) - owners.seen}")
        time.sleep(0.1)
    if owners.longest() > HANDED_OVER:
        raise SystemExit(f"two machines answered for {owners.longest():.2f} s: {owners.doubles}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    kubectl = find_program("kubectl")
    if kubectl is None:
        raise SystemExit("there is no kubectl here")
    chance, counts = random.Random(arguments.seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder, Lab(make_topology((1,) * 6, (ECHO,), lan=True)) as lab:
        machines = Named(lab, Path(folder), kubectl)
        try:
            machines.start()
            machines.words = tuple(machines.token())
            for node in JOINED:
                machines.join(node)
            owners = Owners(lab, tuple(OWNED.values()))
            owners.start()
            for number in range(1, arguments.rounds + 1):
                kind = chance.choice(_KINDS)
                node = strike(machines, kind, chance)
                counts[kind] += 1
                check(owners)
                print(f"round {number}: {kind} {node}; {owners.questions} questions, "
                      f"two owners for {owners.longest():.2f} s at most", flush=True)  # fmt: skip
            owners.end()
            print(dict(counts))
        finally:
            machines.close()


if __name__ == "__main__":
    main()
