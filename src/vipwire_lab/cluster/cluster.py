"""A lab: built, used and taken down.

    with Lab() as lab:
        lab.probe("client", "192.168.0.1", 30080, count=10)

Building claims the name, starts the echo process (which loads meanwhile), makes and connects the namespaces, and
opens the Pods' ports. If a step fails, everything made so far is removed.
"""

import contextlib
import difflib
import itertools
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, Unpack

from vipwire.linux.bpf.namespaces import read_cookie_of
from vipwire.linux.bpf.pins import OURS, build_node_path
from vipwire.model.net import Family, Protocol
from vipwire_lab.cluster import state
from vipwire_lab.cluster.continuous import Connection, Continuous
from vipwire_lab.cluster.outcome import ProbeOptions, ProbeOptionWords, ProbeResult, Target
from vipwire_lab.cluster.probe import probe
from vipwire_lab.echo_servers import servers
from vipwire_lab.namespaces import links, netns, rtnetlink
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId, reap_processes
from vipwire_lab.namespaces.topology import DEFAULT, UNDERLAY, Client, Node, Pod, Topology

ALL_PROTOCOLS = (Protocol.TCP, Protocol.UDP, Protocol.SCTP)
_SYSCTL = Path("/proc/sys/net")
_PATIENT = ProbeOptions(timeout=15.0)
# Unique within the process, and practically never a number left by an earlier process with this pid.
_numbers = itertools.count(secrets.randbelow(0x10000))


class Lab:
    """A small cluster of network namespaces: a context manager, or `up` and later `down`.

    Hosts have their names of the topology; `underlay` is the network between the nodes. Needs root.
    """

    def __init__(self, topology: Topology = DEFAULT, name: str | None = None) -> None:
        self.topology = topology
        self.name = state.check_name(name or f"t{os.getpid()}-{next(_numbers) & 0xFFFF:04x}")
        self._started: list[subprocess.Popen[Any]] = []

    @classmethod
    def attach(cls, name: str) -> Self:
        """Return a lab that is up; raise LabError if none has this name."""
        return cls(state.load_topology(name), name)

    @classmethod
    def attach_any(cls, name: str) -> Self | None:
        """Return a lab to take down, even with damaged files; None if nothing of this name is left."""
        if not (state.directory_of(name).exists() or state.namespaces_of(name)):
            return None
        try:
            return cls.attach(name)
        except LabError:
            return cls(DEFAULT, name)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *exc: object) -> None:
        self.down()

    def up(self, *, stays: bool = False) -> None:
        """Build the lab, or remove all and raise LabError.

        Unless it `stays`, it is stale after this process's end.
        """
        directory = state.create_state(self.name, self.topology, None if stays else ProcessId.of(os.getpid()))
        foreign = [host for host in self.topology.host_names() if self.namespace_of(host).exists()]
        if foreign:
            state.remove_state(directory)
            taken = state.namespace_of(self.name, foreign[0])
            raise LabError(f"the network namespace {taken} already exists, outside of a lab")
        try:
            servers.start_control_process(directory)
            self._build_namespaces()
            for pod in self.topology.pods:
                self.start_pod(pod.name)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End its processes, remove its namespaces and files; works for half-built and missing labs too."""
        directory = state.directory_of(self.name)
        ended = state.end_processes(directory)
        for process in self._started:
            process.wait()
        reap_processes(ended)
        self._remove_programs()
        left = state.namespaces_of(self.name)
        for namespace in left | {state.namespace_of(self.name, host) for host in self.topology.host_names()}:
            netns.delete_namespace(namespace)
        state.remove_state(directory)

    def _remove_programs(self) -> None:
        """Remove programs of proxies in ebpf mode: they belong to the machine and survive their namespace."""
        for node in self.topology.nodes if OURS.exists() else ():
            with contextlib.suppress(OSError):  # no namespace, or no vipwire in bpffs
                shutil.rmtree(build_node_path(read_cookie_of(self.namespace_of(node.name))))

    def find_host(self, name: str) -> Node | Pod | Client:
        """Return a host by name; raise LabError with similar names."""
        for host in self.topology.list_hosts():
            if host.name == name:
                return host
        near = difflib.get_close_matches(name, self.topology.host_names(), 3)
        hosts = ", ".join(near or sorted(self.topology.host_names()))
        names = f"did you mean {hosts}?" if near else f"its hosts: {hosts}"
        raise LabError(f"the lab {self.name} has no host {name!r}: {names}")

    def address_of(self, host: str, family: Family = Family.IPV4) -> str:
        colon = family is Family.IPV6
        for address in self.find_host(host).addresses:
            if (":" in address) is colon:
                return address
        raise LabError(f"host {host} has no {family.value} address")

    def namespace_of(self, host: str) -> Path:
        """Return the mount of a host's namespace: a path for setns, `nsenter --net=`."""
        if host != UNDERLAY:
            self.find_host(host)
        return netns.namespace_path(state.namespace_of(self.name, host))

    def enter_namespace(self, host: str) -> contextlib.AbstractContextManager[None]:
        return netns.enter_namespace(self.namespace_of(host))

    def run(
        self, host: str, argv: Sequence[str], *, timeout: float = 30.0, check: bool = True, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host, as subprocess.run does, capturing its output as text."""
        with self.enter_namespace(host):
            options = {"capture_output": True, "text": True} | more
            return subprocess.run(argv, timeout=timeout, check=check, **options)  # noqa: S603 - what it is for

    def popen(self, host: str, argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
        """Start a command on a host, as subprocess.Popen does; `down` ends it if it still runs."""
        with self.enter_namespace(host):
            process = subprocess.Popen(argv, **more)  # noqa: S603 - what it is for
        self._started.append(process)
        if identity := ProcessId.of(process.pid):
            identity.write(state.directory_of(self.name) / f"{process.pid}.pid")
        return process

    def start_echo_servers(
        self,
        host: str,
        ports: Sequence[int],
        protocols: Sequence[Protocol] = ALL_PROTOCOLS,
        addresses: Sequence[str] = (),
    ) -> None:
        """Answer on more ports of a host, such as a node's for a hostNetwork Pod; without `addresses` on all.

        Raise LabError if a port is taken. Without SCTP sockets in the kernel, raw sockets answer SCTP.
        """
        node = self.topology.node_of(host)
        directory = state.directory_of(self.name)
        servers.request_serving(directory, host, node, self.namespace_of(host), ports, protocols, addresses)

    def start_pod(self, pod: str) -> None:
        found = self.find_host(pod)
        if not isinstance(found, Pod):
            raise LabError(f"{pod} is not a Pod; `start_echo_servers` opens ports on other hosts")
        self.start_echo_servers(pod, found.ports)

    def stop_echo_servers(self, host: str, ports: Sequence[int] = ()) -> int:
        """Close ports of a host (by default all) and their connections; return the number of sockets."""
        self.find_host(host)
        return servers.request_stop(state.directory_of(self.name), host, ports)

    def probe(
        self,
        host: str,
        address: str,
        port: int,
        protocol: Protocol = Protocol.TCP,
        **options: Unpack[ProbeOptionWords],
    ) -> list[ProbeResult]:
        """Connect from a host to an address, `count` times; return the results in order. See `probe.probe`."""
        return probe(self.namespace_of(host), Target(address, port, protocol), replace(_PATIENT, **options))

    def connect_continuously(
        self,
        host: str,
        address: str,
        port: int,
        protocol: Protocol = Protocol.TCP,
        *,
        interval: float = 0.01,
        **options: Unpack[ProbeOptionWords],
    ) -> Continuous:
        """Connect repeatedly in a thread while the result is entered as a context."""
        return Continuous(
            self.namespace_of(host), Target(address, port, protocol), replace(_PATIENT, **options), interval
        )

    def connect(
        self,
        host: str,
        address: str,
        port: int,
        protocol: Protocol = Protocol.TCP,
        **options: Unpack[ProbeOptionWords],
    ) -> Connection:
        return Connection(self.namespace_of(host), Target(address, port, protocol), replace(_PATIENT, **options))

    def _build_namespaces(self) -> None:
        plan = links.plan_wiring(self.topology)
        routers = {UNDERLAY, *(node.name for node in self.topology.nodes)}
        for host in self.topology.host_names():
            netns.create_namespace(state.namespace_of(self.name, host))
            with self.enter_namespace(host):
                _apply_settings(links.sysctls_of(router=host in routers))
        for wire in plan.wires:
            with _open_descriptor(self.namespace_of(wire.host)) as far_end, self.enter_namespace(wire.router):
                rtnetlink.apply_requests([wire.build_request(far_end)])
        for host, requests in plan.requests.items():
            with self.enter_namespace(host):
                rtnetlink.apply_requests(requests)
        if self.topology.lan:
            links.build_lan({host: self.namespace_of(host) for host in (UNDERLAY, *self.topology.lan)}, self.topology)


def take_down_stale() -> list[str]:
    """Take down the labs whose owner has died, and sweep remains of others; return their names."""
    state.remove_drafts()
    abandoned = [name for name in state.list_labs() if state.is_abandoned(state.directory_of(name))]
    stale = sorted({*abandoned, *state.find_orphans()})
    for name in stale:
        if found := Lab.attach_any(name):
            found.down()
    return stale


def _apply_settings(settings: dict[str, str]) -> None:
    for name, value in settings.items():
        # Older kernels lack some of these, and have icmp_msgs_per_sec for the whole machine only, which stays.
        with contextlib.suppress(FileNotFoundError):
            (_SYSCTL / name).write_text(value)


@contextlib.contextmanager
def _open_descriptor(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
