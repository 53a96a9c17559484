"""The scene of ebpf mode, where the kernel can: what a socket is told, and with whom it really speaks."""

import contextlib
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from vipwire_lab.demo import objects
from vipwire_lab.demo.narrator import Narrator
from vipwire_lab.demo.stage import NODE, Stage, as_lines
from vipwire_lab.demo.traffic import MANY
from vipwire_lab.net.errors import LabError

_PORT = 80
_ESTABLISHED = "01"


def at_connect(stage: Stage, narrator: Narrator) -> None:
    """Connect a process of the node in ebpf mode."""
    narrator.chapter("ebpf mode: a socket is given an endpoint when it connects")
    with contextlib.ExitStack() as stack:
        try:
            cgroup = stack.enter_context(own_cgroup())
            more = ("--proxy-mode=ebpf", f"--ebpf-cgroup={cgroup}", "--ebpf-clients=node")
            narrator.quote(f"node-1$ vipwire {' '.join((*stage.proxy_command, *more))}")
            syncs = stage.start_proxy(more)
        except (LabError, OSError) as error:
            reason = str(error).strip().splitlines()[-1]
            narrator.say(f"This machine cannot show it: {reason}")
            return
        narrator.quote(as_lines(syncs))
        _connected(stage, narrator)
        _without_rules(stage, narrator)
        narrator.check("it ends with status 0", holds=stage.proxy is not None and stage.proxy.stop() == 0)
        narrator.check("cleanup removes its programs", holds="removed" in stage.cleanup())


def _connected(stage: Stage, narrator: Narrator) -> None:
    """Show one connection from both sides."""
    with stage.lab.inside(NODE):
        client = socket.create_connection((objects.WEB, _PORT), timeout=15)
        table = Path("/proc/thread-self/net/tcp").read_text(encoding="ascii")
    with client:
        told, real = client.getpeername()[0], _peer(table, client.getsockname()[1])
    narrator.quote(f"what the process is told:   {told}:{_PORT}\nthe kernel's own table:     {real}")
    pods = [address for pod in objects.PODS for address in pod.addresses]
    narrator.check(
        "the process speaks with a Pod directly, and knows the Service only",
        holds=told == objects.WEB and real.rpartition(":")[0] in pods,
    )


def _without_rules(stage: Stage, narrator: Narrator) -> None:
    """Take all rules away: what is given an endpoint at connect() needs none."""
    if shutil.which("nft", path="/usr/sbin:/sbin:/usr/local/sbin:/usr/bin:/bin") is None:
        return
    narrator.quote("node-1$ nft flush ruleset")
    stage.lab.run(NODE, ["nft", "flush", "ruleset"])
    results = stage.lab.probe(NODE, objects.WEB, _PORT, count=MANY)
    narrator.check_answers(results, objects.PODS, "all 5, without a rule")


def _peer(table: str, port: int) -> str:
    """Read the far end of a connection from /proc/net/tcp; "" if it is not there."""
    for line in table.splitlines()[1:]:
        _, local, remote, state = line.split()[:4]
        if state == _ESTABLISHED and int(local.partition(":")[2], 16) == port:
            address, _, far = remote.partition(":")
            return f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(far, 16)}"
    return ""


@contextlib.contextmanager
def own_cgroup() -> Iterator[Path]:
    """Be in a cgroup of this process's own for a while: programs are to see no other's sockets."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    root = next((Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if root is None:
        raise LabError("cgroup2 is not mounted")
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    home = next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))
    own = root / f"vipwire-demo-{os.getpid()}"
    own.mkdir()
    try:
        (own / "cgroup.procs").write_text(str(os.getpid()))
        yield own
    finally:
        (root / home / "cgroup.procs").write_text(str(os.getpid()))
        own.rmdir()
