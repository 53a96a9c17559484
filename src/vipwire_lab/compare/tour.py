"""`vipwire lab tour`: shows each mode in operation, one screen each, with its kernel objects."""

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from vipwire_lab.cluster.state import find_program
from vipwire_lab.compare.staged import describe_kernel, find_guest_obstacle, reason_of, run_lab_in_guest, run_staged
from vipwire_lab.demo import objects
from vipwire_lab.demo.stage import NODE, Stage
from vipwire_lab.namespaces.errors import LabError

_LINES: Final = 12


@dataclass(frozen=True, slots=True)
class Sight:
    """The sight of a mode: a sentence or two, a command, the lines to keep, and a remark about them."""

    about: str
    command: tuple[str, ...]
    lines: str
    look_at: str


SIGHTS: Final = {
    "nftables": Sight(
        "The rules are constant, and Services are elements of maps: a change writes elements, not rules.",
        ("nft", "list", "map", "ip", "vipwire", "service-endpoints"),
        rf"{re.escape(objects.WEB)} \. tcp|type|map ",
        "One element for each slot of the pool: ClusterIP, protocol, port and slot lead to a Pod's address and port. "
        "`nft list chain ip vipwire services` is the same with 10 Services and with 10,000.",
    ),
    "iptables": Sight(
        "kube-proxy's classic: a chain for each Service, and a chain for each of its endpoints.",
        ("iptables-save", "-t", "nat"),
        r"default/web:http",
        "KUBE-SERVICES finds the ClusterIP, KUBE-SVC-… draws by `--probability`, KUBE-SEP-… has the DNAT. Each "
        "Service adds rules, which all packets traverse, unless a tree of address ranges is above them.",
    ),
    "ipvs": Sight(
        "The kernel's own load balancer: a virtual server for each address, with real servers behind it.",
        ("ipvsadm", "-Ln", "-t", f"{objects.WEB}:80"),
        r".",
        "Every VIP is an address of this node, on the interface kube-ipvs0 (`ip address show kube-ipvs0`). The "
        "scheduler follows the address; ActiveConn and InActConn count connections.",
    ),
    "userspace": Sight(
        "A process accepts the client's connection, and opens another connection to a Pod.",
        ("iptables-save", "-t", "nat"),
        rf"{re.escape(objects.WEB)}/32.*--dport 80 ",
        "The rules only lead to a socket of the proxy (`ss -ltn`); with --userspace-bind=none there are no rules. "
        "Pods see this node's address, never the client's.",
    ),
    "ebpf": Sight(
        (
            "A program gives a socket its endpoint at connect(): the kernel translates no packets. Other traffic "
            "meets nftables' rules."
        ),
        ("bpftool", "cgroup", "tree"),
        r"vipwire|connect|sendmsg|recvmsg|getpeername",
        "Programs at connect(), sendmsg() and getpeername() of a cgroup. The process sees the Service's address, "
        "but its socket is connected to a Pod: `ss -tn` shows the Pod. Clients outside have no socket here, and "
        "use the rules.",
    ),
}


def run_tour(
    modes: Sequence[str], say: Callable[[str], None], pause: Callable[[], None], *, here: bool = False
) -> None:
    """Show modes one after the other; calls `pause` between them."""
    for number, mode in enumerate(modes):
        if number:
            pause()
        for line in _compose_screen(mode, f"{number + 1}/{len(modes)}", here=here):
            say(line)


def _compose_screen(mode: str, where: str, *, here: bool) -> Iterator[str]:
    try:
        with run_staged(mode) as (stage, syncs):
            written = sum(each.written for each in syncs)
            yield from _show_sight(mode, where, stage, written)
            return
    except LabError as error:
        reason = reason_of(error)
    why = "" if here else find_guest_obstacle()
    if here or why:
        yield f"── {where}  {mode} mode ── does not run here: {reason}" + (f" (no guest: {why})" if why else "")
        return
    try:
        yield from run_lab_in_guest("tour", "--proxy-mode", mode, "--here").decode().splitlines()
    except LabError as error:
        yield f"── {where}  {mode} mode ── does not run here: {reason}; in a guest: {reason_of(error)}"


def _show_sight(mode: str, where: str, stage: Stage, written: int) -> Iterator[str]:
    sight = SIGHTS.get(mode)
    yield f"── {where}  {mode} mode ── {describe_kernel()}, {written} objects for 4 Services ──"
    if sight is not None:
        yield from ("", *_wrap_text(sight.about))
    for host, whom in (("client", "a client outside"), ("pod-1a", "a Pod of node-1")):
        results = stage.lab.probe(host, objects.WEB, 80, count=20)
        pods = len({result.pod for result in results if result.answer})
        saw = ", ".join(sorted({result.saw for result in results if result.answer}))
        text = f"{whom} connects 20 times to {objects.WEB}:80: {pods} Pods answer, and see {saw}"
        yield from _wrap_text(text, "  ")
    if sight is None:
        return
    yield from ("", f"node-1# {' '.join(sight.command)}   (the lines of default/web)")
    yield from (f"  {line}" for line in _excerpt_of(stage, sight))
    yield from ("", *_wrap_text(f"Look at: {sight.look_at}"), "")


def _excerpt_of(stage: Stage, sight: Sight) -> list[str]:
    """Run the mode's own tool on node-1; return the matching lines without duplicates."""
    program = find_program(sight.command[0])
    if program is None:
        return [
            f"({sight.command[0]} is not installed here; instead `vipwire explain --from 10.244.1.11`:)",
            *_list_path(stage),
        ]
    done = stage.lab.run(NODE, [program, *sight.command[1:]], check=False)
    lines = [line.expandtabs(2).rstrip() for line in done.stdout.splitlines() if re.search(sight.lines, line)]
    kept = [*dict.fromkeys(lines)]
    more = [f"… {len(kept) - _LINES} more lines"] if len(kept) > _LINES else []
    return [*kept[:_LINES], *more] or [done.stderr.strip() or "(nothing)"]


def _list_path(stage: Stage) -> Iterator[str]:
    command = [sys.executable, "-m", "vipwire", "explain", "--from=10.244.1.11", f"{objects.WEB}:80", "-o", "json"]
    done = stage.lab.run(NODE, command, check=False)
    for step in json.loads(done.stdout)["kernel"]["path"][:_LINES]:
        yield f"{step['object']}: {step['text']}"


def _wrap_text(text: str, indent: str = "") -> Iterator[str]:
    """Fold prose to the terminal's width, never inside a word."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 110)
    wrapper = textwrap.TextWrapper(width, initial_indent=indent, subsequent_indent=2 * indent)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    yield from wrapper.wrap(text)


def wait_for_enter() -> None:
    """Wait for Enter on a terminal; otherwise continue."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        sys.stderr.write("Enter: the next mode ")
        sys.stderr.flush()
        sys.stdin.readline()
        subprocess.run(["clear"], check=False)  # noqa: S607  # a terminal's own
