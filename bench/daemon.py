"""(3) Memory, (4) restart and (5) bursts of the real `vipwire proxy`, fed by an API server over HTTP."""

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Self

from bench.cluster import NODE, POD_CIDR, new_address, node_plan
from bench.options import Options
from bench.pipe import memory
from bench.report import Figure

from vipwire.backends.nftables.kernel import NftablesBackend
from vipwire.backends.nftables.names import target_bytes
from vipwire.model.net import Family
from vipwire.netlink.nftables import decode, encode
from vipwire.netlink.nftables.wire import MessageType
from vipwire.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.plan.plan import Target

TITLE = "the daemon, fed over HTTP"
BURST = 1_000
READY = "http://127.0.0.1:10256/readyz"
PATIENCE = 120.0
_TICKS = os.sysconf("SC_CLK_TCK")


def measure(options: Options) -> list[Figure]:
    with _compiled() as environment, _Api(options) as api, NetlinkSocket(NETLINK_NETFILTER) as netlink:
        with _Daemon(api.url, environment) as first:
            figures = [
                Figure("from exec to ready", first.ready, "s"),
                Figure("  CPU", first.cpu(), "s"),
                Figure("peak memory at the first start", first.peak, "MB", 250),
            ]
            figures += _changes(api, netlink, options)
            figures += _burst(api, netlink, first, options)
            figures += [
                Figure("memory after it", memory(first.process.pid)[0], "MB"),
                Figure("peak memory of its life", memory(first.process.pid)[1], "MB", 250),
            ]
        before = _generation(netlink)
        with _Daemon(api.url, environment) as second:
            figures += [
                Figure("restart on the programmed kernel: from exec to ready", second.ready, "s", 2.0),
                Figure("  CPU", second.cpu(), "s", 2.0),
                Figure("  transactions", _generation(netlink) - before, "number", 0),
                Figure("  peak memory", second.peak, "MB", 250),
            ]
    return figures


@contextlib.contextmanager
def _compiled() -> Iterator[dict[str, str]]:
    """Give the environment in which Python finds vipwire compiled, as an installed package is."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(
            [sys.executable, "-c", "import vipwire.app.run, vipwire.cli.main"], env=environment, check=True
        )
        yield environment


def _changes(api: "_Api", netlink: NetlinkSocket, options: Options) -> list[Figure]:
    """Change one endpoint at a time at the API server, until the kernel has it."""
    times = []
    for index in range(min(options.samples, 100)):
        before = _generation(netlink)
        began = api.change(1, 20_000 + index)
        times.append((_settled(netlink, before, quiet=0.02) - began) * 1e3)
    return [
        Figure("one endpoint changed: API server to kernel", statistics.median(times), "ms"),
        Figure("  nine of ten within", statistics.quantiles(times, n=10)[8], "ms"),
    ]


def _burst(api: "_Api", netlink: NetlinkSocket, daemon: "_Daemon", options: Options) -> list[Figure]:
    count = min(BURST, options.services)
    before, cpu = _generation(netlink), daemon.cpu()
    took = -api.change(count, 30_000) + _settled(netlink, before, quiet=1.0)
    transactions = _generation(netlink) - before
    _require({target_bytes(Target(new_address(30_000 + number), 8080, local=False)) for number in range(count)})
    return [
        Figure(f"{count:,} endpoints changed at once: API server to kernel", took, "s", 2.0),
        Figure("  CPU", daemon.cpu() - cpu, "s"),
        Figure("  transactions", transactions, "number"),
    ]


def _require(targets: set[bytes]) -> None:
    """Make sure that the kernel has every one of some endpoints."""
    backend = NftablesBackend(Family.IPV4)
    with contextlib.closing(backend):
        backend.render_node(node_plan())
        missing = targets - {value for value in backend.observe().values() if isinstance(value, bytes)}
    if missing:
        raise SystemExit(f"{len(missing)} of {len(targets)} changed endpoints did not reach the kernel")


def _generation(netlink: NetlinkSocket) -> int:
    (answer,) = netlink.request(MessageType.GETGEN, encode.ask_generation())
    return decode.generation(answer.payload).id


def _settled(netlink: NetlinkSocket, before: int, quiet: float) -> float:
    """Wait until something was committed and then nothing for `quiet` seconds; tell when the last commit was seen."""
    seen, changed, limit = before, 0.0, time.monotonic() + PATIENCE
    while not changed or time.monotonic() - changed < quiet:
        now = _generation(netlink)
        if now != seen:
            seen, changed = now, time.monotonic()
        if time.monotonic() > limit:
            raise SystemExit("the daemon did not follow the API server")
        time.sleep(0.0005)
    return changed


class _Api:
    """The API server in a process of its own."""

    def __init__(self, options: Options) -> None:
        command = [sys.executable, "-m", "bench.apiserver", str(options.services), str(options.endpoints)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._answer()

    def _answer(self) -> str:
        out = self._process.stdout
        line = out.readline() if out else ""
        if not line:
            raise SystemExit("the fake API server did not start")
        return line.strip()

    def change(self, count: int, first: int) -> float:
        """Let it change endpoints; return when it began, on the monotonic clock."""
        if self._process.stdin:
            self._process.stdin.write(f"{count} {first}\n")
            self._process.stdin.flush()
        return float(self._answer())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()


class _Daemon:
    """`vipwire proxy`; entering it waits until it is ready, leaving it ends it with SIGTERM."""

    def __init__(self, url: str, environment: dict[str, str]) -> None:
        self._url, self._environment = url, environment
        self._log: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed at the end
        self.ready = self.peak = 0.0

    def __enter__(self) -> Self:
        flags = ["--master", self._url, "--hostname-override", NODE, "--cluster-cidr", POD_CIDR]
        command = [sys.executable, "-m", "vipwire", "proxy", *flags]
        began = time.monotonic()
        self.process = subprocess.Popen(command, stderr=self._log, stdout=self._log, env=self._environment)
        for _ in self._looks():
            if _is_ready():
                break
        self.ready = time.monotonic() - began
        self.peak = memory(self.process.pid)[1]
        return self

    def _looks(self) -> Iterator[None]:
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and self.process.poll() is None:
            yield
            time.sleep(0.01)
        self._log.seek(0)
        self.process.kill()
        raise SystemExit(f"vipwire proxy did not become ready:\n{self._log.read()[-4000:]}")

    def cpu(self) -> float:
        """Tell its CPU time so far, in seconds."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=PATIENCE)
        self._log.close()


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(READY, timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except OSError:  # an HTTP status of 503 is one too
        return False
