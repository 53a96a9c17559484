"""A soak with chaos: `python -m bench.soak --minutes 10 [--mode iptables] [--own-proxy]`, as root.

Services and EndpointSlices change all the time, clients connect all the time, and one thing after the other goes
wrong (faults.py). At the end: `vipwire diff` finds nothing, nothing acknowledged is lost, memory and open files are
flat, no process has ended by itself, and no connection has failed that no fault explains. Exit status 1 otherwise.

Everything is in namespaces of its own, and in ebpf mode in a cgroup and a bpffs of its own. The seed decides which
fault comes when, and what changes.
"""

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.soak.churn import SERVICES, SLICES, Api, Ledger, Writer, service, slice_of
from bench.soak.faults import Harm
from bench.soak.probing import Failure, Prober, Window, unexplained
from bench.soak.scene import NODE, PATIENCE, Part, Scene
from bench.soak.shim import compiled
from tests.proxy.conformance import own_cgroup

from vipwire_lab.cluster.outcome import Target
from vipwire_lab.namespaces.topology import Pod

WRITERS, PAUSE = 4, 0.02
STEADY, NODE_PORT = "steady", 30080
CALM = 4.0
"""Mean seconds between two faults."""
_INSIDE = "--inside"


class Soak:
    """One run. `verdict` lists failed expectations."""

    def __init__(self, folder: Path, seconds: float, seed: int, mode: str = "nftables", *, own: bool = False) -> None:
        self._seconds, self._seed = seconds, seed
        self._chance = random.Random(seed)
        self._scene = Scene(folder, compiled(folder), seed, mode, own=own)
        self._harm = Harm(self._scene, self._chance)
        self._ledger, self._done = Ledger(), Counter[str]()
        self._began = time.monotonic()
        self._probers: list[Prober] = []
        self.verdict: dict[str, str] = {}

    def run(self) -> None:
        """Build the scene, apply faults, judge, and print the table."""
        with self._scene.standing(), self._scene.lab.enter_namespace(self._scene.host):
            self._scene.up.start()
            asyncio.run(self._story())
        self._tell()

    async def _story(self) -> None:
        async with Api(self._scene.data) as api:
            vip = await self._prepare(api)
            await asyncio.to_thread(self._scene.proxy.ready)
            with self._probing(vip):
                await self._trouble(api)
                await self._judge(api)

    async def _prepare(self, api: Api) -> str:
        node = {"metadata": {"name": NODE}, "status": {"addresses": [_internal(self._scene.node_address)]}}
        if not self._scene.own:  # otherwise the proxy has created its Node
            await api.send("POST", "/api/v1/nodes", node)
        steady = await api.send("POST", SERVICES, service(STEADY, 0, node_port=NODE_PORT))
        await api.send("POST", SLICES, slice_of(STEADY, 0, self._pods()))
        if not self._scene.own:
            self._scene.proxy.launch()
        return str(steady["spec"]["clusterIP"])

    def _pods(self) -> Sequence[Pod]:
        return self._scene.lab.topology.pods

    @contextlib.contextmanager
    def _probing(self, vip: str) -> Iterator[None]:
        lab = self._scene.lab
        self._probers = [
            Prober("Pod to ClusterIP", lab.namespace_of("pod-1b"), Target(vip, 80)),
            Prober("client to NodePort", lab.namespace_of("client"), Target(self._scene.node_address, NODE_PORT)),
        ]
        with contextlib.ExitStack() as stack:
            for prober in self._probers:
                stack.enter_context(prober)
            yield

    async def _trouble(self, api: Api) -> None:
        """Change objects and apply faults until the time is over."""
        writers = [Writer(number, self._ledger, self._pods(), self._seed) for number in range(WRITERS)]
        try:
            async with asyncio.timeout(self._seconds), asyncio.TaskGroup() as tasks:
                for writer in writers:
                    tasks.create_task(writer.run(api, PAUSE))
                tasks.create_task(self._watch())
                await self._faults()
        except TimeoutError:
            self._say("time is over")

    async def _faults(self) -> None:
        faults = self._harm.all()
        bag: list[str] = []
        while True:
            await asyncio.sleep(self._chance.uniform(0.5, 2 * CALM))
            bag = bag or self._chance.sample(sorted(faults), len(faults))
            name = bag.pop()
            self._done[name] += 1
            await faults[name]()
            self._say(name)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for part in self._parts:
                part.look_after()
                part.sample()

    async def _judge(self, api: Api) -> None:
        """End all faults, wait until everything has settled, and compare."""
        self._end_faults()
        for part in self._parts:
            if part.process is None:
                part.launch()
            await asyncio.to_thread(part.ready)
        await asyncio.sleep(5.0)  # long enough for a check of the kernel, while the probes continue
        difference = await asyncio.to_thread(self._scene.difference)
        limit = time.monotonic() + PATIENCE
        while difference and time.monotonic() < limit:
            await asyncio.sleep(1.0)
            difference = await asyncio.to_thread(self._scene.difference)
        lost = await self._ledger.lost(api)
        failed = [failure for prober in self._probers for failure in prober.failures]
        strange = unexplained(failed, self._harm.windows)
        self.verdict = {
            "`vipwire diff` is empty": difference,
            "nothing acknowledged is lost": "; ".join(lost[:5]),
            "connections failed only where a fault explains it": _told(strange, self._began),
            **{f"{part.name} never ended by itself": "; ".join(part.unexpected) for part in self._parts},
            **{f"memory and files of {part.name} are flat": _growth(part) for part in self._parts},
            "no traceback in a log": "; ".join(part.name for part in self._parts if _has_traceback(part)),
        }

    @property
    def _parts(self) -> tuple[Part, ...]:
        return self._scene.parts

    def _end_faults(self) -> None:
        for faults in (self._scene.up_faults, self._scene.proxy_faults):
            faults.netlink()
            faults.clock(0)
        (self._scene.data / "filler").unlink(missing_ok=True)
        begin = time.monotonic()  # connections that NAT is just opening lose their entry
        self._scene.run("conntrack", "-F")
        self._harm.windows.append(Window("conntrack flushed", begin, time.monotonic() + 1.0))

    def _say(self, what: str) -> None:
        made, failed = sum(each.attempts for each in self._probers), sum(len(p.failures) for p in self._probers)
        print(
            f"{time.monotonic() - self._began:7.1f} s  {what:20} writes {self._ledger.acknowledged:6,}"
            f"  connections {made:7,}, failed {failed}",
            flush=True,
        )

    def _tell(self) -> None:
        struck = self._scene.proxy_faults.struck
        who = "the API server's own proxy" if self._scene.own else "a proxy"
        print(f"\nseed {self._seed}, {self._seconds:.0f} s, {who} in {self._scene.mode} mode")
        print(f"  faults        {', '.join(f'{name} {count}' for name, count in sorted(self._done.items()))}")
        print(
            f"  netlink       {struck.overflowed} x ENOBUFS, {struck.interrupted} x EINTR, {struck.not_sent} unsent"
        )
        print(f"  acknowledged  {self._ledger.acknowledged:,} writes; others: {dict(self._ledger.troubles)}")
        for prober in self._probers:
            shares = ", ".join(f"{pod} {count}" for pod, count in sorted(prober.answers.items()))
            print(f"  connections   {prober.name}: {prober.attempts:,}, failed {len(prober.failures)}; {shares}")
        for part in self._parts:
            print(f"  {part.name:13} {_held(part)}")
        for name, wrong in self.verdict.items():
            print(f"  {'NO ' if wrong else 'yes'}  {name}{': ' + wrong if wrong else ''}")


def _internal(address: str) -> dict[str, str]:
    return {"type": "InternalIP", "address": address}


def _told(strange: Sequence[Failure], began: float) -> str:
    return "; ".join(f"{each.what} at {each.begin - began:.1f} s" for each in strange[:5])


def _grown(part: Part) -> list[tuple[float, int]]:
    """Return memory and files of samples after the start-up."""
    return [(each.memory, each.files) for each in part.samples if each.age > 10]


def _held(part: Part) -> str:
    found = _grown(part) or [(0.0, 0)]
    third = max(1, len(found) // 3)
    first, last = found[:third], found[-third:]
    return (
        f"MB {max(m for m, _ in first):.0f} at most in the first third, {max(m for m, _ in last):.0f} in the last;"
        f" files {max(f for _, f in first)}, {max(f for _, f in last)}"
    )


def _growth(part: Part) -> str:
    """Describe a growth of memory or files from the first third of the time to the last; "" if none."""
    found = _grown(part)
    if len(found) < 30:
        return ""
    third = len(found) // 3
    first, last = found[:third], found[-third:]
    grew = max(m for m, _ in last) > 1.25 * max(m for m, _ in first) + 10
    return _held(part) if grew or max(f for _, f in last) > max(f for _, f in first) + 10 else ""


def _has_traceback(part: Part) -> bool:
    return "Traceback" in part.log.read_text(encoding="utf-8", errors="replace")


def apart(command: Sequence[str], mode: str) -> int:
    """Run in new namespaces: the pid namespace ends all processes with its first one."""
    spaces = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
    with own_cgroup.entered() if mode == "ebpf" else contextlib.nullcontext():
        return subprocess.run(["unshare", *spaces, *command], check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="0: another one each time")
    parser.add_argument("--mode", choices=("nftables", "iptables", "ipvs", "userspace", "ebpf"), default="nftables")
    parser.add_argument("--own-proxy", action="store_true", help="the proxy of `vipwire up`, in the same process")
    parser.add_argument("--keep", type=Path, help="a folder for the logs; else they go")
    parser.add_argument(_INSIDE, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if os.geteuid():
        raise SystemExit("network namespaces need root: sudo python -m bench.soak")
    if not arguments.inside:
        sys.exit(apart((sys.executable, "-m", "bench.soak", *sys.argv[1:], _INSIDE), arguments.mode))
    # Programs of the first pid namespace would take this lab for one of a process that has ended, and remove it.
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    seed = arguments.seed or random.SystemRandom().randint(1, 1 << 30)
    with tempfile.TemporaryDirectory(prefix="vipwire-soak-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder.resolve(), arguments.minutes * 60, seed, arguments.mode, own=arguments.own_proxy)
        soak.run()
    sys.exit(1 if any(soak.verdict.values()) or not soak.verdict else 0)


if __name__ == "__main__":
    main()
