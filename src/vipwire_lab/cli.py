"""`vipwire lab`: builds a small cluster on this machine, inspects it, sends packets through it, removes it."""

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.text import Text

from vipwire.config.modes import list_mode_names
from vipwire.model.text import whole_number
from vipwire.terminal.columns import Column, Grid
from vipwire.terminal.output import plain_errors, print_line, print_note
from vipwire.terminal.removed_option import refuse_option
from vipwire_lab.browser_view import show_page
from vipwire_lab.cluster import manifests as kubernetes
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab, take_down_stale
from vipwire_lab.cluster.outcome import Outcome, ProbeOptions, ProbeResult, Target
from vipwire_lab.cluster.probe import probe
from vipwire_lab.cluster.state import extend_search_path, spell_command
from vipwire_lab.compare import measure
from vipwire_lab.compare.tour import run_tour as show_modes
from vipwire_lab.compare.tour import wait_for_enter
from vipwire_lab.demo.scenes import run_demo
from vipwire_lab.echo_servers import sockets as raw_sockets
from vipwire_lab.namespaces.topology import Client, Node, make_topology
from vipwire_lab.proxies import proxies_folder, start_proxies

_NAME = click.option(
    "--name",
    "-l",
    default="demo",
    show_default=True,
    envvar="VIPWIRE_LAB",
    help="Name of the lab. Several labs can be up.",
)
_OUTPUT = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)


_MODE = click.Choice(list_mode_names())


@click.group()
def lab() -> None:
    """Build a small cluster out of network namespaces, and send packets through it.

    The cluster has two nodes, Pods that answer with their name and the client's address, and a client outside, in
    both IP families. All are network namespaces named vipwire-LAB-HOST (see `ip netns`); the machine's own network
    does not change. Needs root. `compare` and `tour` show all modes, and boot another kernel for ipvs mode if this
    kernel lacks IPVS.
    """


@lab.command(short_help="Build a lab, which stays up.")
@_NAME
@click.option("--pods", default="3,2", show_default=True, help="Number of Pods on node-1, node-2, ...")
@click.option("--ports", default="80,8080", show_default=True, help="Ports on which each Pod answers.")
@click.option(
    "--machines", type=click.IntRange(1, 9), help="Number of nodes with one Pod each, on one Ethernet (lan0)."
)
@click.option("--proxy-mode", "mode", type=_MODE, help="Also run `vipwire proxy` in this mode on every node.")
def up(name: str, pods: str, ports: str, machines: int | None, mode: str | None) -> None:
    """Build a lab and leave it up; with --proxy-mode it serves a Service `web` at 10.96.0.10 and node port 30080."""
    with plain_errors():
        many, open_ports = _parse_numbers("--pods", pods, 0, 26), _parse_numbers("--ports", ports, 1, 65535)
        many = (1,) * machines if machines else many
        built = Lab(make_topology(many, open_ports, lan=bool(machines)), name)
        built.up(stays=True)
        if mode:
            try:
                start_proxies(built, mode)
            except BaseException:
                built.down()
                raise
        show_lab(built)
        if mode:
            show_proxies(built, mode, proxies_folder(built))


@lab.command()
@_NAME
@click.option("--stale", is_flag=True, help="Instead, remove the remains of killed tests and demos, of every lab.")
def down(name: str, *, stale: bool) -> None:
    """Remove a lab: its servers, its namespaces, its files."""
    with plain_errors():
        if stale:
            ended = take_down_stale()
            print_line(f"Removed: {', '.join(ended)}." if ended else "No stale lab was found.")
            return
        found = Lab.attach_any(name)
        if found is None:
            click.echo(f"No lab named {name} is up.")
            return
        found.down()
        click.echo(f"The lab {name} is down.")


@lab.command(
    short_help="Run a command in a host's network.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@_NAME
@click.argument("host")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec(name: str, host: str, command: tuple[str, ...]) -> NoReturn:  # noqa: A001 - the command's name
    """Run a command in a host's network: `vipwire lab exec node-1 -- nft list ruleset`."""
    command = command[command[0] == "--" :]
    with plain_errors(), Lab.attach(name).enter_namespace(host):
        environment = dict(os.environ)
        environment["PATH"] = extend_search_path(environment.get("PATH", os.defpath))
        environment[state.FLAGS] = state.flags_for_lab(name, environment.get(state.FLAGS, ""))
        try:
            os.execvpe(command[0], command, environment)  # noqa: S606 - what it is for
        except FileNotFoundError as error:
            raise click.ClickException(f"there is no command {command[0]!r}") from error


@lab.command("probe", short_help="Connect from a host and show the Pods that answer.")
@_NAME
@_OUTPUT
@click.argument("host")
@click.argument("destination", metavar="ADDRESS:PORT[/udp]")
@click.option("--count", "-n", default=1, show_default=True, help="Number of connections.")
@click.option("--timeout", default=1.0, show_default=True, help="Timeout of each connection, in seconds.")
@click.option("--source", help="Source address, one of the host's.")
@click.option(
    "--source-port", type=click.IntRange(1, 65535), help="Source port; connections then run one after another."
)
@click.option("--parallel", default=16, show_default=True, help="Number of connections at a time.")
@click.pass_context
def probe_command(context: click.Context, /, name: str, output: str, host: str, destination: str, **how: Any) -> None:
    """Connect from a host and count the answers: `vipwire lab probe client 10.96.0.10:80 -n 100`.

    Write IPv6 in brackets: [fd00:10:96::10]:80. The exit status is 1 if a connection got no answer.
    """
    with plain_errors():
        found = Lab.attach(name)
        target = Target.parse(destination)
        results = probe(found.namespace_of(host), target, ProbeOptions(**how))
    if output == "json":
        click.echo(json.dumps([build_result_object(result) for result in results], indent=2))
    else:
        show_results(host, target, results)
    context.exit(int(not all(result.answer for result in results)))


@lab.command()
@_NAME
@_OUTPUT
def show(name: str, output: str) -> None:
    """Show a lab's hosts, their addresses and namespaces."""
    with plain_errors():
        found = Lab.attach(name)
        if output == "json":
            click.echo(json.dumps({"name": name} | asdict(found.topology), indent=2))
        else:
            show_lab(found)


@lab.command(short_help="Serve the page of a node's proxy.")
@_NAME
@click.argument("node", default="node-1")
@click.option("--port", default=10247, show_default=True, type=click.IntRange(0, 65535), help="Port of 127.0.0.1.")
def view(name: str, node: str, port: int) -> None:
    """Serve the page of a node's proxy for a browser of this machine: `vipwire lab view`, until interrupted."""
    with plain_errors():
        show_page(Lab.attach(name), node, port)


@lab.command(short_help="Print the lab as Kubernetes objects.")
@_NAME
def manifests(name: str) -> None:
    """Print the lab as Kubernetes objects: its Nodes, and a Service `web` with its EndpointSlices."""
    with plain_errors():
        click.echo(kubernetes.dump_yaml(kubernetes.build_example(Lab.attach(name).topology)), nl=False)


@lab.command(short_help="Run all modes on the same Services and packets.")
@click.option("--proxy-mode", "modes", multiple=True, type=_MODE, help="Only this mode; repeatable.")
@click.option("--html", expose_value=False, hidden=True, callback=refuse_option("--html", "use -o wide or -o json"))
@click.option("--here", is_flag=True, help="Do not boot a guest for a mode that this kernel cannot run.")
@click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "wide", "json"]),
    default="table",
    show_default=True,
    help="Output format; wide shows a packet's way through each mode's rules.",
)
def compare(modes: tuple[str, ...], output: str, *, here: bool) -> None:
    """Run all modes, one after the other, on the same Services and packets, and compare them. About a minute.

    Prints for each mode the endpoints, the client addresses that Pods see, the written objects, the costs of a change
    and of a connection, and the rules that a packet meets. If this machine's kernel cannot run a mode, such as ipvs
    without IPVS, vipwire boots another kernel for it (the package user-mode-linux).
    """
    with plain_errors():
        document = measure.compare_modes(
            modes or list_mode_names(), lambda mode: print_note(f"running {mode} mode …"), here=here
        )
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    else:
        measure.print_document(build_console(), document, wide=output == "wide")


@lab.command(short_help="Show each mode for a screen, with its own tools.")
@click.option("--proxy-mode", "modes", multiple=True, type=_MODE, help="Only this mode; repeatable.")
@click.option("--here", is_flag=True, help="Do not boot a guest for a mode that this kernel cannot run.")
def tour(modes: tuple[str, ...], *, here: bool) -> None:
    """Show each mode for a screen: vipwire runs, packets pass, and the screen explains the kernel's objects.

    Enter goes on. If this machine's kernel cannot run a mode, vipwire boots another kernel, as for `compare`.
    """
    with plain_errors():
        show_modes(modes or list_mode_names(), print_line, wait_for_enter, here=here)


@lab.command(short_help="Show Services at work, scene by scene.")
@click.pass_context
def demo(context: click.Context) -> None:
    """Show Services at work, scene by scene: build a lab, run vipwire in it, remove all again. Half a minute.

    The exit status is 1 if a scene's packets do not behave as its text promises.
    """
    with plain_errors():
        context.exit(run_demo())


def _parse_numbers(option: str, text: str, least: int, most: int) -> tuple[int, ...]:
    numbers = tuple(whole_number(part.strip(), least, most) for part in text.split(","))
    if None in numbers:
        raise click.BadParameter(
            f"{text!r}: write numbers from {least} to {most}, with commas between", param_hint=option
        )
    return tuple(number for number in numbers if number is not None)


_COLOURS = {Outcome.ANSWERED: "green", Outcome.TIMED_OUT: "yellow"}
_WIDTH_OF_A_FILE = 140


def show_lab(lab: Lab) -> None:
    rows: list[list[str | Text]] = []
    for host in lab.topology.list_hosts():
        match host:
            case Node():
                what, colour = f"node in {host.zone}", "cyan"
            case Client():
                what, colour = f"outside, with the gateway {host.gateway}", "magenta"
            case _:
                ports = ", ".join(map(str, host.ports))
                what, colour = f"Pod on {host.node}, answers on {ports}", "green"
        namespace = state.namespace_of(lab.name, host.name)
        rows.append([Text(host.name, style=colour), what, "\n".join(host.addresses), namespace])
    screen = build_console()
    screen.print(f"lab {lab.name}", style="bold", markup=False)
    columns = [Column("host"), Column("role", prose=True), Column("addresses"), Column("namespace", rank=1)]
    screen.print(Grid(columns, rows), overflow="ignore", crop=False)
    if not raw_sockets.has_kernel_sctp():
        screen.print("This kernel has no SCTP sockets: Pods and probes use vipwire's own SCTP.", style="yellow")
    option = "" if lab.name == "demo" else f" --name {lab.name}"
    target = lab.topology.pods[0].addresses[0] if lab.topology.pods else lab.topology.nodes[0].addresses[0]
    screen.print(spell_command(f"Try: vipwire lab probe{option} client {target}:80"), style="dim", highlight=False)


def show_results(host: str, target: Target, results: Sequence[ProbeResult]) -> None:
    groups: dict[tuple[str, str, str], list[ProbeResult]] = {}
    for result in results:
        groups.setdefault((_describe_result(result), result.pod, result.saw), []).append(result)
    rows: list[list[str | Text]] = []
    for (words, pod, saw), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
        colour = _COLOURS.get(group[0].outcome, "red")
        middle = statistics.median(result.duration for result in group) * 1000
        rows.append([str(len(group)), Text(words, style=colour), pod or "-", saw or "-", f"{middle:.2f}"])
    columns = [Column("times"), Column("outcome"), Column("by"), Column("which saw"), Column("median ms", rank=1)]
    screen = build_console()
    screen.print(f"{host} to {target}", style="bold", markup=False)
    screen.print(Grid(columns, rows), overflow="ignore", crop=False)


def show_proxies(lab: Lab, mode: str, folder: Path) -> None:
    name = "" if lab.name == "demo" else f" --name {lab.name}"
    node = lab.topology.nodes[0].name
    log = state.directory_of(lab.name) / f"proxy-{node}.log"
    lines = (
        f"vipwire lab probe{name} client 10.96.0.10:80 -n 20",
        f"vipwire lab exec{name} {node} -- vipwire status",
        f"vipwire lab exec{name} {node} -- vipwire explain --from 203.0.113.2 10.96.0.10:80",
        f"vipwire lab view{name}",
        f"vipwire lab down{name}",
    )
    screen = build_console()
    screen.print(f"\nA proxy in {mode} mode runs on each node. It watches {folder}.", soft_wrap=True)
    screen.print(f"Its log: {log}", soft_wrap=True)
    for line in lines:
        screen.print(f"  {spell_command(line)}", style="dim", highlight=False, soft_wrap=True)


def build_result_object(result: ProbeResult) -> dict[str, Any]:
    return asdict(result) | {
        "outcome": result.outcome.value,
        "error": os.strerror(result.errno) if result.errno else None,
    }


def _describe_result(result: ProbeResult) -> str:
    if result.outcome is Outcome.UNREACHABLE and result.errno:
        return f"{result.outcome.value}: {os.strerror(result.errno)}"
    return result.outcome.value


def build_console() -> Console:
    """Build the console for tables; output into a file is never truncated."""
    made = Console()
    return made if made.is_terminal else Console(width=_WIDTH_OF_A_FILE)
