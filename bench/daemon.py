"""A whole proxy, seen from outside: start, restart, one change, a thousand, idle, memory; kube-proxy beside it.

    python -m bench daemon --services 10000 --modes nftables ebpf --kube-proxy /usr/local/bin/kube-proxy
    python -m bench daemon --before ../released                # another checkout of vipwire beside this one
    python -m bench daemon --modes iptables-legacy --gap 2.5   # changes that do not wait for minSyncPeriod

A separate API server process feeds the proxy over HTTP. Times end when connections from another network namespace
reach the right endpoints. CPU is that of the process and its children.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.blackbox.daemon import Daemon, kernel_threads
from bench.blackbox.scene import Scene, each, scene, settle, tools
from bench.cluster import NODE, POD_CIDR, new_address, node_plan
from bench.datapath import inside
from bench.options import Options
from bench.report import Figure
from tests.proxy.conformance import own_cgroup

from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family, format_address
from vipwire.modes.nftables.kernel import NftablesBackend
from vipwire.modes.nftables.table.names import encode_target
from vipwire.plan.plan import Target

TITLE = "whole proxies, seen from outside"
BURST = 1_000
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 30.0
_IMPORT_ALL = """
import contextlib, importlib, pkgutil, vipwire
for module in pkgutil.walk_packages(vipwire.__path__, "vipwire.", onerror=lambda name: None):
    if not module.name.endswith("__main__"):
        with contextlib.suppress(ImportError):  # another checkout may want libraries that this one's Python lacks
            importlib.import_module(module.name)
"""
_OUTLIVING = ("userspace", "ebpf")
"""Modes with objects that outlive the network namespace: relays, programs in bpffs."""
_KUBE_PROXY_MODES = ("nftables", "iptables", "iptables-nft", "iptables-legacy", "ipvs")


@dataclass(frozen=True, slots=True)
class Contestant:
    """A proxy to run: title of its figures, command, environment."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]

    @property
    def ours(self) -> bool:
        return self.name != "kube-proxy"


def measure(options: Options) -> list[Figure]:
    _require_others(options)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder, own_cgroup.entered():
        for mode in options.modes:
            for contestant in _contestants(options, mode, Path(folder)):
                with scene(options.services, options.endpoints) as where:
                    figures += _measured(mode, contestant, where, options)
    return [*figures, *_ratios(figures)]


def _require_others(options: Options) -> None:
    """Check that the other proxies exist before minutes of measuring."""
    if options.kube_proxy and shutil.which(options.kube_proxy) is None:
        raise SystemExit(f"--kube-proxy: {options.kube_proxy} is no program")
    if options.before and not (Path(options.before) / "src" / "vipwire").is_dir():
        raise SystemExit(f"--before: {options.before} is no checkout of vipwire: it has no src/vipwire")


def _contestants(options: Options, mode: str, folder: Path) -> Iterator[Contestant]:
    path = {}
    if "-" in mode:
        path["PATH"] = tools(folder / mode, mode.partition("-")[2])
    flags = ("--hostname-override", NODE, "--cluster-cidr", POD_CIDR, "--proxy-mode", mode.partition("-")[0])
    for name, source in (("vipwire", ""), ("before", options.before)):
        if name == "vipwire" or source:
            environment = {**os.environ, **path, **_compiled(folder / name, source)}
            command = (sys.executable, "-m", "vipwire", "proxy", "--state-dir", str(folder / f"{name}-state"), *flags)
            yield Contestant(name, command, environment)
    if options.kube_proxy and mode in _KUBE_PROXY_MODES:
        yield Contestant("kube-proxy", (options.kube_proxy, *flags), {**os.environ, **path})


def _compiled(folder: Path, source: str) -> dict[str, str]:
    """Return an environment in which Python finds vipwire's compiled byte code, as in an installed package."""
    added = {"PYTHONPYCACHEPREFIX": str(folder)}
    if source:
        added["PYTHONPATH"] = str(Path(source).resolve() / "src")
    environment = {**os.environ, **added}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if not folder.exists():
        folder.mkdir()
        subprocess.run([sys.executable, "-c", _IMPORT_ALL], env=environment, check=True)
    return {**added, "PYTHONDONTWRITEBYTECODE": ""}


def _measured(mode: str, proxy: Contestant, where: Scene, options: Options) -> Iterator[Figure]:
    title = f"{mode}, {proxy.name}:"
    command = [*proxy.command, "--master", where.api.url, *_flags_of_mode(mode, where)]
    counted = mode == "nftables" and proxy.ours
    try:
        with where.start(command, proxy.environment) as daemon:
            yield from _started(title, where, daemon)
            yield from _followed(title, where, daemon, options)
            yield from _burst(title, where, daemon, options, counted=counted)
        where.api.do("move", 9_000)
        yield from _restarted(title, where, lambda: where.start(command, proxy.environment), counted=counted)
    finally:
        if mode in _OUTLIVING:
            command = ["cleanup" if word == "proxy" else word for word in command]
            with inside(where.where.node):
                subprocess.run(command, check=True, env=proxy.environment, stderr=subprocess.DEVNULL)


def _restarted(title: str, where: Scene, start: Callable[[], Daemon], *, counted: bool) -> Iterator[Figure]:
    """Measure a start on a programmed kernel, after a change of one endpoint."""
    before = _generation(where) if counted else 0
    with start() as daemon:
        yield Figure(f"{title} restart, exec to healthy", where.healthy(daemon), "s")
        end = where.until(where.services, format_address(new_address(9_000)))
        yield Figure(f"{title} restart, exec to caught up", end - daemon.began, "s")
        settle(daemon, SETTLE_SECONDS)
        yield Figure(f"{title} restart, CPU", daemon.cpu(), "s")
        yield Figure(f"{title} restart, peak memory", daemon.memory()[1], "MB")
        if counted:
            yield Figure(f"{title} restart, transactions for one change", _generation(where) - before, "number", 1)


def _flags_of_mode(mode: str, where: Scene) -> tuple[str, ...]:
    if mode != "ebpf":
        return ()
    return "--ebpf-cgroup", str(own_cgroup.path()), "--ebpf-clients", f"/proc/{os.getpid()}/fd/{where.where.client}"


def _started(title: str, where: Scene, daemon: Daemon) -> Iterator[Figure]:
    first, last = where.first_and_last(daemon)
    cpu = daemon.cpu()
    yield Figure(f"{title} exec to first probe answered", first, "s")
    yield Figure(f"{title} exec to last probe answered", last, "s")
    yield Figure(f"{title} CPU until then", cpu, "s")
    settle(daemon, SETTLE_SECONDS)
    yield Figure(f"{title} CPU until it idles", daemon.cpu(), "s")
    now, peak = daemon.memory()
    yield Figure(f"{title} peak memory", peak, "MB")
    yield Figure(f"{title} peak memory of a child", daemon.children_peak, "MB")
    yield Figure(f"{title} memory afterwards", now, "MB")


def _followed(title: str, where: Scene, daemon: Daemon, options: Options) -> Iterator[Figure]:
    """Measure an idle proxy, and one that follows one change at a time."""
    cpu, threads = daemon.cpu(), kernel_threads()
    time.sleep(IDLE_SECONDS)
    idle, idle_threads = (daemon.cpu() - cpu) / IDLE_SECONDS, (kernel_threads() - threads) / IDLE_SECONDS
    yield Figure(f"{title} idle, CPU a second", idle * 1e3, "ms")
    began, cpu, threads = time.monotonic(), daemon.cpu(), kernel_threads()
    times = each(range(1, min(options.samples, 100) + 1), where.moved, options.gap)
    took = time.monotonic() - began
    spent, kernel = daemon.cpu() - cpu - idle * took, kernel_threads() - threads - idle_threads * took
    yield Figure(f"{title} one change, event to answer", statistics.median(times) * 1e3, "ms")
    yield Figure(f"{title} one change, nine of ten within", statistics.quantiles(times, n=10)[8] * 1e3, "ms")
    yield Figure(f"{title} one change, CPU", spent / len(times) * 1e3, "ms")
    yield Figure(f"{title} one change, CPU of the kernel's threads", kernel / len(times) * 1e3, "ms")


def _burst(title: str, where: Scene, daemon: Daemon, options: Options, *, counted: bool) -> Iterator[Figure]:
    count = min(BURST, options.services)
    before, cpu = _generation(where) if counted else 0, daemon.cpu()
    began = where.api.do("burst", count, 30_000)
    took = where.until(count - 1, format_address(new_address(30_000 + count - 1))) - began
    yield Figure(f"{title} {count:,} changes at once, event to answer", took, "s")
    settle(daemon, SETTLE_SECONDS)
    yield Figure(f"{title} {count:,} changes at once, CPU", daemon.cpu() - cpu, "s")
    if counted:
        _require(where, count, 30_000)
        yield Figure(f"{title} {count:,} changes at once, transactions", _generation(where) - before, "number")


def _require(where: Scene, count: int, first: int) -> None:
    """Check that the kernel has all new endpoints from number `first` on."""
    targets = {encode_target(Target(new_address(first + number), 8080, local=False)) for number in range(count)}
    with inside(where.where.node), contextlib.closing(NftablesBackend(Family.IPV4)) as backend:
        backend.render_node(node_plan())
        missing = targets - {value for value in backend.observe().values() if isinstance(value, bytes)}
    if missing:
        raise SystemExit(f"{len(missing)} of {len(targets)} changed endpoints did not reach the kernel")


def _generation(where: Scene) -> int:
    with inside(where.where.node), NetlinkSocket(NETLINK_NETFILTER) as netlink:
        (answer,) = netlink.request(MessageType.GETGEN, encode.request_generation())
    return decode.decode_generation(answer.payload).id


def _ratios(figures: list[Figure]) -> Iterator[Figure]:
    values = {figure.name: figure.value for figure in figures}
    for figure in figures:
        for other in ("before", "kube-proxy"):
            beside = values.get(figure.name.replace(", vipwire:", f", {other}:"), 0.0)
            if ", vipwire:" in figure.name and beside > 0:
                name = figure.name.replace(", vipwire:", f", vipwire / {other}:")
                yield Figure(name, figure.value / beside, "ratio")
