"""ipvs mode: loading many Services, changing one, and a restart; beside ipvsadm and ip, in one run.

    python -m bench.ipvs [--services 5000] [--endpoints 10]

Runs in a guest kernel with IPVS (`vipwire_lab.guest_kernel`). Absolute times are those of User-Mode Linux, where a
system call takes 20 to 30 microseconds: only ratios apply to other machines.
"""

import gc
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from vipwire.linux.netlink.ipvs import Command, Forwarding, RealServer, VirtualServer
from vipwire.model.names import ObjectName
from vipwire.model.net import Address, Family, Prefix, Protocol
from vipwire.model.service import Endpoint, EndpointPort, EndpointSlice, Service, ServicePort
from vipwire.modes.ipvs.kernel import IpvsBackend
from vipwire.modes.ipvs.objects.device import Device
from vipwire.modes.ipvs.objects.names import Object, ObjectKey
from vipwire.modes.ipvs.objects.servers import IpvsServers
from vipwire.modes.ipvs.objects.servers import ServerCommand as Write
from vipwire.plan.frontends import plan_service
from vipwire.plan.node import NodePlan, PodPrefixes
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.reconciler import Reconciler
from vipwire_lab import guest_kernel

_TURNS = 300
NODE = NodePlan(Family.IPV4, "node-1", pod_traffic=PodPrefixes((Prefix.parse("10.0.0.0/8"),)))


def address(base: int, number: int) -> Address:
    return Address((base << 24 | number + 1).to_bytes(4))


def plan(number: int, endpoints: int, skip: int = -1) -> ServicePlan:
    name = ObjectName("bench", f"service-{number}")
    first = number * endpoints
    found = [Endpoint(address(10, first + at), node="node-2") for at in range(endpoints) if at != skip]
    piece = EndpointSlice(name, name, Family.IPV4, (EndpointPort("", Protocol.TCP, 8080),), tuple(found))
    service = Service(name, (ServicePort("", Protocol.TCP, 80),), (address(172, number),))
    return plan_service(NODE, service, [piece])


def timed(action: Callable[[], object]) -> float:
    gc.collect()
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def run(command: list[str], text: str = "") -> None:
    done = subprocess.run(command, input=text, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr[-500:]}")


def ipvsadm_text(objects: Mapping[ObjectKey, Object]) -> Iterator[str]:
    def place(where: Address, port: int) -> str:
        return ".".join(map(str, where)) + f":{port}"

    for key in objects:
        if isinstance(key, VirtualServer):
            yield f"-A -t {place(key.address, key.port)} -s rr"
    for key, value in objects.items():
        if isinstance(key, RealServer) and isinstance(value, Forwarding):
            server = place(key.server.address, key.server.port)
            yield f"-a -t {server} -r {place(key.address, key.port)} -m -w {value.weight}"


def loaded(services: int, endpoints: int) -> tuple[IpvsBackend, Reconciler[ObjectKey, Object]]:
    backend = IpvsBackend(Family.IPV4)
    reconciler: Reconciler[ObjectKey, Object] = Reconciler(backend)
    reconciler.desire_node(backend.render_node(NODE))
    for number in range(services):
        made = plan(number, endpoints)
        reconciler.desire(made.name, made)
    return backend, reconciler


class ServerCommand(NamedTuple):
    """Median seconds of one change from plan to kernel, and of the IPVS command alone."""

    whole: float
    command: float


def one_change(backend: IpvsBackend, reconciler: Reconciler[ObjectKey, Object], endpoints: int) -> ServerCommand:
    """Measure a change of one endpoint of one Service among all, and the kernel's part of it.

    The garbage collector runs before, not between: a pass over the heap empties the processor's caches and would slow
    the next change.
    """
    plans = [plan(turn // 2 % 50, endpoints, skip=0 if turn % 2 == 0 else -1) for turn in range(_TURNS)]
    servers = IpvsServers(Family.IPV4)
    some = itertools.islice(servers.read_services(), 50)
    reals = [RealServer(server, servers.read_real_servers(server)[0].address, 8080) for server in some]
    gc.collect()
    gc.freeze()
    whole, alone = [], []
    for made in plans:
        began = time.perf_counter()
        reconciler.desire(made.name, made)
        reconciler.sync()
        whole.append(time.perf_counter() - began)
    backend.housekeep()
    for turn in range(_TURNS):
        command = Write(Command.SET_DEST, reals[turn % 50], Forwarding(1))
        began = time.perf_counter()
        servers.apply([command])
        alone.append(time.perf_counter() - began)
    gc.unfreeze()
    servers.close()
    return ServerCommand(statistics.median(whole), statistics.median(alone))


def inside(services: int, endpoints: int) -> None:
    Path("/proc/sys/net/ipv4/vs/run_estimation").write_text("1")
    small, few = loaded(100, endpoints)
    few.sync()
    at_100 = one_change(small, few, endpoints)
    small.delete()
    small.close()

    backend, reconciler = loaded(services, endpoints)
    all_of_it = timed(reconciler.sync)
    at_many = one_change(backend, reconciler, endpoints)
    checked = timed(backend.changed)
    held = backend.observe()
    backend.close()
    backend, reconciler = loaded(services, endpoints)
    again = timed(reconciler.sync)
    servers: dict[ObjectKey, Object] = {
        key: value for key, value in held.items() if isinstance(key, (VirtualServer, RealServer))
    }
    vips = [address(172, number) for number in range(services)]
    backend.delete()

    # A new network namespace, because the kernel is slow to add again what it has just deleted.
    lines = "\n".join(ipvsadm_text(servers)) + "\n"
    fresh = ["unshare", "--net", "sh", "-c", "ip link set lo up && exec ipvsadm -R"]
    reference = timed(lambda: run(fresh, lines))
    device = Device(Family.IPV4)
    addresses = timed(lambda: device.add_addresses(vips))
    device.delete_device()
    run(["ip", "link", "add", "kube-ipvs0", "type", "dummy"])
    batch = "".join(f"address add {'.'.join(map(str, vip))}/32 dev kube-ipvs0\n" for vip in vips)
    by_ip = timed(lambda: run(["ip", "-batch", "-"], batch))
    print(
        f"{services} Services of {endpoints} endpoints, {len(servers)} virtual and real servers, {len(held)} objects"
    )
    print(f"ipvsadm -R                              {reference:8.3f} s")
    print(f"everything (sets, VIPs, chains, plans)  {all_of_it:8.3f} s   {reference / all_of_it:5.1f} times as fast")
    print(f"ip -batch, VIPs                         {by_ip:8.3f} s")
    print(f"VIPs, batches                           {addresses:8.3f} s   {by_ip / addresses:5.1f} times as fast")
    for number, change in ((100, at_100), (services, at_many)):
        print(f"one endpoint changes, {number:4} Services      {change.whole * 1000:8.3f} ms", end="")
        print(f"   a command to IPVS alone {change.command * 1000:.3f} ms")
    print(f"a look for drift                        {checked:8.3f} s")
    print(f"restart: observe, compare, write nothing{again:8.3f} s")


@click.command()
@click.option("--services", default=5000, show_default=True)
@click.option("--endpoints", default=10, show_default=True)
def main(services: int, endpoints: int) -> None:
    if guest_kernel.current_guest_kernel():
        inside(services, endpoints)
        return
    command = [sys.executable, "-m", "bench.ipvs", f"--services={services}", f"--endpoints={endpoints}"]
    sys.exit(guest_kernel.run_in_guest(command, guest_kernel.Guest(memory="1500M", timeout=900)))


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    main()
