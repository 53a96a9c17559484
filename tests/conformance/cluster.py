"""A lab with a real `vipwire proxy` on a node of it, a file of manifests that it watches, and what tests ask of it.

A change is waited for by a fact: after each a Service of our own, the beacon, is given a new port, and when that is
answered the change is in the kernel. For vipwire reads folders in the order in which they are given, and what it has
read together is one transaction: the beacon's folder is the first, so that whoever has read it reads the rest later.
"""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.conformance.modes import Mode
from tests.conformance.services import Hosts, TestService

from vipwire.lab import manifests
from vipwire.lab.cluster import Lab
from vipwire.lab.continuous import Connection
from vipwire.lab.manifests import Manifest, Port
from vipwire.lab.outcome import Outcome, ProbeResult, Target
from vipwire.lab.topology import DEFAULT, SERVICE_CIDRS, UNDERLAY, Node, Pod, Topology
from vipwire.model.net import Family

POD_CIDRS = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
SERVICE_CIDR: Manifest = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "ServiceCIDR",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": list(SERVICE_CIDRS)},
}
_UNREACHABLE = """
    add table inet vips
    add chain inet vips arriving { type filter hook prerouting priority 0; }
    add chain inet vips unknown
    add set inet vips ours { type ipv6_addr; flags interval; }
    add element inet vips ours { fd00:10:96::/112, 2001:db8:e::/48, 2001:db8:1b::/48 }
    add rule inet vips unknown meta nfproto ipv4 reject with icmp net-unreachable
    add rule inet vips unknown reject with icmpv6 no-route
    add rule inet vips arriving iifname "node-*" ip daddr { 10.96.0.0/16, 198.18.0.0/15 } jump unknown
    add rule inet vips arriving iifname "node-*" ip6 daddr @ours jump unknown
"""
"""The network between the nodes knows no VIP. It says so by itself, but to each host only once a second."""
_TABLES = ("inet others", "ip kube-proxy")
_OTHERS = """
    table inet others { chain c { type filter hook prerouting priority -300; counter; }; set s { type ipv4_addr; }; }
    table ip kube-proxy { chain services { counter; }; }
"""
_PATIENCE = 20.0
"""Seconds until a fact that does not come about is a failure."""
_BATCH, _BATCHES = 24, 5


@dataclass(frozen=True, slots=True)
class Caller:
    """Who connects: a host, and which of its addresses of the family it does it from."""

    host: str
    index: int = 0

    def __str__(self) -> str:
        return self.host


POD, OTHER_POD, REMOTE_POD = Caller("pod-1c"), Caller("pod-1b"), Caller("pod-2b")
NODE = Caller("node-1", 1)
"""A process on the node, from the secondary address: so that it can be seen when the primary one replaces it."""
OUTSIDE, BLOCKED = Caller("client"), Caller("client", 1)


class Answer(NamedTuple):
    """What an HTTP server said."""

    status: int
    headers: dict[str, str]
    body: str


def until(fact: Callable[[], Any], what: str, patience: float = _PATIENCE) -> Any:
    """Ask again and again until something is so; return it."""
    deadline, pause = time.monotonic() + patience, threading.Event()
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not so after {patience:.0f} s: {what}"
        pause.wait(0.01)
    return found


class Cluster:
    """One lab and one proxy, with options that no other has."""

    def __init__(
        self, mode: Mode, options: Sequence[str], *, cidrs: bool = True, node: str = "node-1", lab: Lab | None = None
    ) -> None:
        self.mode, self.options, self.node_name = mode, tuple(options), node
        self.lab, self._borrowed = lab or Lab(DEFAULT), lab is not None
        self._folder = tempfile.TemporaryDirectory(prefix="vipwire-conformance-")
        self.folder = Path(self._folder.name)
        self._first, self.manifests = self.folder / "first", self.folder / "manifests"
        self.nodes = {node.name: manifests.node(node) for node in self.topology.nodes}
        self._cidrs = [SERVICE_CIDR] if cidrs else []
        self._bundles: dict[str, list[Manifest]] = {}
        self._services: dict[str, TestService] = {}
        self._beacon = TestService(self.topology, "beacon", 0, (Port(1000, 80),))
        self._process: subprocess.Popen[Any] | None = None

    @property
    def topology(self) -> Topology:
        """The lab's hosts."""
        return DEFAULT

    def up(self) -> None:
        """Build the lab and start the proxy."""
        self._first.mkdir()
        self.manifests.mkdir()
        if not self._borrowed:
            self.lab.up()
        self.lab.run(UNDERLAY, ["nft", _UNREACHABLE])
        self.write()
        self.start()

    def down(self) -> None:
        """End and remove all; fail if the proxy did not run well up to the end."""
        try:
            status = self.stop() if self._process else 0
        finally:
            log = self.log
            if not self._borrowed:
                self.lab.down()
            self._folder.cleanup()
        assert status == 0, f"vipwire ended with status {status}:\n{log[-4000:]}"
        assert "Traceback" not in log, log

    @contextlib.contextmanager
    def beside(self, node: str) -> Iterator["Cluster"]:
        """Have a proxy of another node of the same lab for a while."""
        other = Cluster(self.mode, self.options, node=node, lab=self.lab)
        try:
            other.up()
            yield other
        finally:
            other.down()

    # The proxy.

    def start(self) -> None:
        """Start the proxy and wait until it is ready."""
        self.launch()
        until(lambda: self._alive() and self.page("/readyz").status == http.HTTPStatus.OK, "/readyz is 200")

    def launch(self) -> None:
        """Start the proxy and do not wait. Checks of the kernel come every second, whatever the mode is called."""
        flags = [
            f"--proxy-mode={self.mode}",
            f"--manifests={self._first}",
            f"--manifests={self.manifests}",
            f"--hostname-override={self.node_name}",
            "--oom-score-adj=0",
            "--iptables-sync-period=1s",
            "--iptables-min-sync-period=0s",
            "--ipvs-sync-period=1s",
        ]
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", "vipwire.cli", "proxy", *flags, *self.options]
            self._process = self.lab.popen(self.node_name, command, stdout=log, stderr=subprocess.STDOUT)

    def stop(self) -> int:
        """End the proxy as a service manager does; return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(_PATIENCE)
        self._process = None
        return status

    @property
    def running(self) -> bool:
        """Whether there is a proxy."""
        return self._process is not None

    @property
    def log(self) -> str:
        """All that the proxies of this cluster have said."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, since: int, *words: str) -> str:
        """Wait for a line of the log, behind its first `since` characters, that has all these words; return it."""

        def look() -> str:
            lines = self.log[since:].splitlines()
            return next((line for line in lines if all(word in line for word in words)), "")

        found: str = until(look, f"the log says {' … '.join(words)}; it said\n{self.log[since:][-3000:]}")
        return found

    def page(self, path: str, port: int = 10256, address: str = "127.0.0.1", host: str = "") -> Answer:
        """Ask for a page by HTTP; status 0 if nobody serves it."""
        connection = http.client.HTTPConnection(address, port, timeout=5)
        try:
            with self.lab.inside(host or self.node_name):
                connection.connect()
            connection.request("GET", path)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read().decode())
        except OSError as error:
            return Answer(0, {}, str(error))
        finally:
            connection.close()

    def vipwire(self, *arguments: str) -> str:
        """Run another command of vipwire on the node; return what it says."""
        done = self.lab.run(self.node_name, [sys.executable, "-m", "vipwire.cli", *arguments])
        return str(done.stdout + done.stderr)

    # The kernel.

    def rules(self, family: Family, *, handles: bool = False) -> list[str]:
        """List what the kernel holds of ours and packets do not change, in pieces. Writing changes the handles."""
        harm = self.mode.harm
        listed = self.lab.run(self.node_name, (harm.exact if handles else harm.listing)[family], check=False)
        return sorted(filter(None, map(str.strip, re.split(r"[\n,{}]", re.sub(harm.passing, "", listed.stdout)))))

    @contextlib.contextmanager
    def others(self) -> Iterator[Callable[[], str]]:
        """Have rules of somebody else beside ours for a while; gives what lists them."""
        self.lab.run(self.node_name, ["nft", _OTHERS])
        try:
            yield lambda: "".join(
                self.lab.run(self.node_name, ["nft", "-s", "-a", f"list table {table}"]).stdout for table in _TABLES
            )
        finally:
            self.lab.run(
                self.node_name, ["nft", "; ".join(f"delete table {table}" for table in _TABLES)], check=False
            )

    @contextlib.contextmanager
    def obstructed(self) -> Iterator[None]:
        """Keep the proxy from writing for a while."""
        command, line = self.mode.harm.obstacle
        with self.lab.popen(
            self.node_name, command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
            until(lambda: self.rules(Family.IPV4), "the obstacle is there")
            yield
            process.stdin.close()

    # Objects.

    def pods(self, *names: str) -> list[Pod]:
        """Find Pods by name."""
        return [pod for pod in self.topology.pods if pod.name in names]

    def node(self, name: str) -> Node:
        """Find a node by name."""
        return next(node for node in self.topology.nodes if node.name == name)

    def named(self, name: str, ports: Sequence[Port] = (Port(80),)) -> TestService:
        """Give a Service of that name its addresses, the same every time; nothing is written yet."""
        number = self._services[name].number if name in self._services else len(self._services) + 1
        self._services[name] = TestService(self.topology, name, number, tuple(ports), self.node_name)
        return self._services[name]

    def service(self, name: str, hosts: Hosts, ports: Sequence[Port] = (Port(80),), **spec: Any) -> TestService:
        """Write a Service and its EndpointSlices, in place of what was of that name."""
        made = self.named(name, ports)
        self.put(name, made.objects(hosts, **spec))
        return made

    def put(self, name: str, objects: Iterable[Manifest]) -> None:
        """Write objects in place of those that were put under this name, and wait until they count."""
        wanted = list(objects)
        if self._bundles.get(name, []) != wanted:
            self._bundles[name] = wanted
            self._replace(self.manifests / f"{name}.json", wanted)
            self.write()

    def write(self) -> None:
        """Write the Nodes and what else is of the cluster, and wait until all that was written counts."""
        port = self._beacon.ports[0].port + 1
        self._beacon = TestService(self.topology, "beacon", 0, (Port(port, 80),), self.node_name)
        pod = next(pod for pod in self.topology.pods if pod.node == self.node_name)
        beacon = self._beacon.objects([pod], type="ClusterIP", externalIPs=None)
        self._replace(self._first / "cluster.json", [*self.nodes.values(), *self._cidrs, *beacon])
        if self.running:
            self._settle()

    def _replace(self, path: Path, objects: Sequence[Manifest]) -> None:
        if not objects:
            path.unlink(missing_ok=True)
            return
        draft = self.folder / "draft"
        draft.write_text("\n".join(map(json.dumps, objects)))
        os.replace(draft, path)  # noqa: PTH105 - says what it is

    def _settle(self) -> None:
        caller, beacons = Caller(self.node_name), [self._beacon.vip(family) for family in Family]

        def lit() -> bool:
            return self._alive() and all(self.probe(caller, each, timeout=0.5)[0].answer for each in beacons)

        until(lit, f"a change is in the kernel; the log ends\n{self.log[-3000:]}")

    def _alive(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"vipwire has ended:\n{self.log[-4000:]}"
        return True

    # Packets.

    def address(self, caller: Caller, family: Family) -> str:
        """Tell the address that a caller connects from."""
        found = [each for each in self.lab.host(caller.host).addresses if (":" in each) is (family is Family.IPV6)]
        return found[caller.index]

    def probe(
        self, caller: Caller, target: Target, count: int = 1, *, timeout: float = 3.0, parallel: int = 16
    ) -> list[ProbeResult]:
        """Connect so often from a caller's address; tell what became of each."""
        source = self.address(caller, family_of(target))
        address, port, protocol = target.address, target.port, target.protocol
        return self.lab.probe(
            caller.host, address, port, protocol, source=source, count=count, timeout=timeout, parallel=parallel
        )

    def connect(
        self, caller: Caller, target: Target, source_port: int | None = None, *, timeout: float = 3.0
    ) -> Connection:
        """Open a connection that stays open; over UDP, a socket that keeps sending from one port."""
        source = self.address(caller, family_of(target))
        address, port, protocol = target.address, target.port, target.protocol
        return self.lab.connect(
            caller.host, address, port, protocol, source=source, source_port=source_port, timeout=timeout
        )

    def answered(
        self, caller: Caller, target: Target, pods: Iterable[str], *, masqueraded: bool | None = None
    ) -> list[ProbeResult]:
        """Connect until each of these has answered, and at least so often that another would have been seen.

        `masqueraded` says whom they must have seen: the node or the caller. To itself a Pod is always the node.
        """
        expected, seen, results = set(pods), set[str](), list[ProbeResult]()
        for _ in range(_BATCHES):
            for result in self.probe(caller, target, _BATCH):
                assert result.pod in expected, f"{caller} to {target}: {result}, expected {sorted(expected)}"
                self._check_source(caller, target, result, masqueraded=masqueraded)
                seen.add(result.pod)
                results.append(result)
            if seen == expected:
                return results
        message = f"{caller} to {target}: {_BATCH * _BATCHES} times only {sorted(seen)} of {sorted(expected)}"
        raise AssertionError(message)

    def _check_source(self, caller: Caller, target: Target, result: ProbeResult, *, masqueraded: bool | None) -> None:
        family = family_of(target)
        if masqueraded is None:
            return
        if masqueraded or (result.pod == caller.host and caller.host != self.node_name):
            expected = self.lab.address(self.node_name, family)
        else:
            expected = self.address(caller, family)
        assert result.saw == expected, f"{caller} to {target}: {result}, expected to be seen as {expected}"

    def refused(self, caller: Caller, target: Target) -> None:
        """Connect, and be told at once that nobody is there: before a second SYN would be sent."""
        self._became(caller, target, Outcome.REFUSED, 0.9)

    def dropped(self, caller: Caller, target: Target) -> None:
        """Connect, and hear nothing."""
        self._became(caller, target, Outcome.TIMED_OUT, 0.3)

    def passed_on(self, caller: Caller, target: Target) -> None:
        """Connect, and find that the packet was left alone: behind the node there is no way to a VIP."""
        self._became(caller, target, Outcome.UNREACHABLE, 0.9)

    def _became(self, caller: Caller, target: Target, outcome: Outcome, timeout: float) -> None:
        for result in self.probe(caller, target, 3, timeout=timeout):
            assert result.outcome is outcome, f"{caller} to {target}: {result}, expected {outcome.value}"

    def sticks(self, caller: Caller, target: Target, count: int = 15) -> str:
        """Connect so often, and find the same endpoint each time; return its name."""
        pods = {result.pod for result in self.probe(caller, target, count)}
        assert len(pods) == 1, f"{caller} to {target}: {sorted(pods)}, expected one of them only"
        assert pods != {""}, f"{caller} to {target}: nobody answers"
        return pods.pop()


def family_of(target: Target) -> Family:
    """Tell the family of a target."""
    return Family.IPV6 if ":" in target.address else Family.IPV4
