"""A lab with a proxy on one node and watched folders of manifests: the basis of most tests.

After each change a test's own Service, the beacon, gets a new port; once that answers, the change is in the kernel.
vipwire reads folders in the given order, and one read is one transaction: the beacon's folder is first, so a proxy
that has read it reads the others later.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.own_network import end_relays
from tests.fakes.waiting import until
from tests.proxy.conformance.explained import Witness
from tests.proxy.conformance.lost import traces
from tests.proxy.conformance.mode import Mode
from tests.proxy.conformance.packets import PATIENCE, Caller, Packets, family_of
from tests.proxy.conformance.proxy import Answer, Proxy
from tests.proxy.conformance.services import Hosts, LabService
from tests.proxy.conformance.translated import translated

from vipwire.model.net import Family, format_address
from vipwire_lab.cluster import manifests
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.cluster.continuous import Connection
from vipwire_lab.cluster.manifests import Manifest, Port
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.namespaces.topology import DEFAULT, SERVICE_CIDRS, Node, Pod, Topology

POD_CIDRS = "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48"
SERVICE_CIDR: Manifest = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "ServiceCIDR",
    "metadata": {"name": "kubernetes"},
    "spec": {"cidrs": list(SERVICE_CIDRS)},
}


class Cluster(Packets):
    """One lab and one proxy with a unique set of options."""

    def __init__(
        self,
        mode: Mode,
        options: Sequence[str],
        *,
        cidrs: bool = True,
        node: str = "node-1",
        lab: Lab | None = None,
        calm: bool = True,
    ) -> None:
        super().__init__(lab or Lab(DEFAULT), node)
        self.relayed = mode.relays
        self.mode, self._options, self._borrowed = mode, tuple(options), lab is not None
        self._folder = tempfile.TemporaryDirectory(prefix="vipwire-conformance-")
        folder = Path(self._folder.name)
        self._draft, self._first, self.manifests = folder / "draft", folder / "first", folder / "manifests"
        watched = [f"--manifests={self._first}", f"--manifests={self.manifests}"]
        checks = mode.calm if calm else mode.watchful
        self.proxy = Proxy(mode, self.lab, node, folder, [*watched, *options], checks=checks)
        self._witness = Witness(lambda: self.lab.enter_namespace(node), self.proxy.flags, mode)
        self.nodes = {node.name: manifests.node_manifest(node) for node in self.topology.nodes}
        self._cidrs = [SERVICE_CIDR] if cidrs else []
        self._bundles: dict[str, list[Manifest]] = {}
        self._module, self._stale = "", set[str]()
        self._services: dict[str, LabService] = {}
        self._beacon = LabService(self.topology, "beacon", 0, (Port(1000, 80),))

    @property
    def topology(self) -> Topology:
        return DEFAULT

    def up(self) -> None:
        self._first.mkdir()
        self.manifests.mkdir()
        if not self._borrowed:
            self.lab.up()
            self.name_no_vip()
            for node in self.topology.nodes:
                for command in self.mode.prepare:
                    self.lab.run(node.name, command)
            if self.mode.has_cgroup:
                self._serve_at_own_addresses()
        self.write()
        self.proxy.start()

    def down(self) -> None:
        """End and remove everything; fail if the proxy did not run well to the end."""
        try:
            status = self.proxy.end_process()
        finally:
            log = self.proxy.log
            self._witness.close()
            try:
                if self.mode.relays:
                    self._end_relays()
                if self.mode.has_cgroup:
                    self.proxy.vipwire("cleanup")
            finally:
                if not self._borrowed:
                    self.lab.down()
                self._folder.cleanup()
        assert status == 0, f"vipwire ended with status {status}:\n{log[-4000:]}"
        assert "Traceback" not in log, log

    def _serve_at_own_addresses(self) -> None:
        """Let Pods listen at their own addresses only: one that listens at all could be any Pod of this node."""
        for pod in self.topology.pods:
            self.lab.stop_echo_servers(pod.name)
            self.lab.start_echo_servers(pod.name, pod.ports, addresses=pod.addresses)

    def _end_relays(self) -> None:
        """End processes that outlive the proxy; in a lasting lab also remove rules to them, which takes longer."""
        if self._borrowed:
            self.proxy.vipwire("cleanup")
        else:
            with self.lab.enter_namespace(self.node_name):
                end_relays()

    @contextlib.contextmanager
    def beside(self, node: str) -> Iterator["Cluster"]:
        """Run a proxy on another node of the same lab for the block."""
        other = Cluster(self.mode, self._options, node=node, lab=self.lab)
        try:
            other.up()
            yield other
        finally:
            other.down()

    def send(self, caller: Caller, target: Target, manner: ProbeOptions) -> list[ProbeResult]:
        """Connect; `explain` must agree with each connection's result."""
        question = self._witness.ask(self.address(caller, family_of(target)), target)
        if self.mode.has_cgroup and self.proxy.running:
            with translated(self.lab, self.node_name, caller.host, target, manner.count):
                results = super().send(caller, target, manner)
        else:
            results = super().send(caller, target, manner)
        try:
            self._witness.judge(question, results, runs=self.proxy.running)
        except AssertionError as error:
            error.add_note(traces(self.lab, results))
            raise
        return results

    def health_check(self, caller: Caller, target: Target) -> Answer:
        """Request a health check node port; `explain` must have predicted the answer."""
        question = self._witness.ask(self.address(caller, family_of(target)), target)
        page = self.proxy.page("/any", target.port, target.address, caller.host)
        self._witness.judge_page(question, page)
        return page

    def answering(self, caller: Caller, target: Target) -> set[str]:
        """Return the Pods that answer a caller now according to `explain`; sends nothing."""
        question = self._witness.ask(self.address(caller, family_of(target)), target)
        found = set(map(format_address, self._witness.answering(question)))
        return {pod.name for pod in self.topology.pods if not found.isdisjoint(pod.addresses)}

    def connect(
        self, caller: Caller, target: Target, source_port: int | None = None, *, timeout: float = PATIENCE
    ) -> Connection:
        """Open a lasting connection; `explain` must have predicted its endpoint."""
        question = self._witness.ask(self.address(caller, family_of(target)), target)
        connection = super().connect(caller, target, source_port, timeout=timeout)
        result = ProbeResult(Outcome.ANSWERED, 0.0, connection.answer)
        self._witness.judge(question, [result], runs=self.proxy.running)
        return connection

    def pods(self, *names: str) -> list[Pod]:
        return [pod for pod in self.topology.pods if pod.name in names]

    def node(self, name: str) -> Node:
        return next(node for node in self.topology.nodes if node.name == name)

    def named(self, name: str, ports: Sequence[Port] = (Port(80),)) -> LabService:
        """Return a Service of that name with its addresses, the same every time; writes nothing."""
        number = self._services[name].number if name in self._services else len(self._services) + 1
        self._services[name] = LabService(self.topology, name, number, tuple(ports), self.node_name)
        return self._services[name]

    def service(self, name: str, hosts: Hosts, ports: Sequence[Port] = (Port(80),), **spec: Any) -> LabService:
        """Write a Service and its EndpointSlices, replacing those of that name."""
        made = self.named(name, ports)
        self.put(name, made.objects(hosts, **spec))
        return made

    def enter(self, module: str) -> None:
        """Let the next change remove other modules' objects: with each Service, all rules take longer to read."""
        if module != self._module:
            self._module, self._stale = module, set(self._bundles)

    def put(self, name: str, objects: Iterable[Manifest]) -> None:
        """Write objects, replacing those of this name, and wait until they take effect."""
        self.put_all({name: objects})

    def put_all(self, bundles: Mapping[str, Iterable[Manifest]]) -> None:
        """Write the objects of several names as one change, and wait until they take effect."""
        wanted = {name: list(objects) for name, objects in bundles.items()}
        self._stale -= wanted.keys()
        if changed := {name: each for name, each in wanted.items() if self._bundles.get(name, []) != each}:
            for name in self._stale:
                del self._bundles[name]
                changed[name] = []
            self._stale.clear()
            self._bundles |= wanted
            for name, each in changed.items():
                self._replace(self.manifests / f"{name}.json", each)
            self.write()

    def write(self) -> None:
        """Write all objects of the cluster, and wait until they take effect."""
        port, since = self._beacon.ports[0].port + 1, len(self.proxy.log)
        self._beacon = LabService(self.topology, "beacon", 0, (Port(port, 80),), self.node_name)
        pod = next(pod for pod in self.topology.pods if pod.node == self.node_name)
        beacon = self._beacon.objects([pod], type="ClusterIP", externalIPs=None)
        self._replace(self._first / "cluster.json", [*self.nodes.values(), *self._cidrs, *beacon])
        self._witness.written()
        if self.proxy.running:
            self._settle(since)

    def _replace(self, path: Path, objects: Sequence[Manifest]) -> None:
        if not objects:
            path.unlink(missing_ok=True)
            return
        self._draft.write_text("\n".join(map(json.dumps, objects)))
        os.replace(self._draft, path)  # noqa: PTH105 - says what it is

    def _settle(self, since: int) -> None:
        caller, beacons = Caller(self.node_name), [self._beacon.vip(family) for family in Family]
        send = super().send  # without asking `explain`

        def lit() -> bool:
            return self.proxy.alive() and all(
                send(caller, each, ProbeOptions(timeout=0.5))[0].answer for each in beacons
            )

        until(lit, lambda: f"a change is in the kernel; the log ends\n{self.proxy.log[-3000:]}")
        for family in Family:  # modes that commit in steps may serve the beacon before the last one
            self.proxy.said(since, "msg=synced", f"ip_family={family.value}")
