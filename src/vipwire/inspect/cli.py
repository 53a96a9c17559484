"""The commands that show Services, plans, differences, packets and findings: as tables, JSON or YAML.

`live` has the commands that follow connections, `drain` the one that changes the choice of endpoints.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.styled import Styled
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError, VipwireError
from vipwire.inspect import decisions, difference
from vipwire.inspect.check.facts import gather_facts
from vipwire.inspect.check.findings import check_document, check_view, list_findings
from vipwire.inspect.check.ipvs_facts import read_leaving
from vipwire.inspect.check.leave_ipvs import judge_leaving, leave_document, leave_exit, leave_view
from vipwire.inspect.command import show
from vipwire.inspect.command.options import (
    EVERYWHERE,
    INTERVAL,
    NAMED_OUTPUT,
    NAMESPACE,
    SERVICES_OUTPUT,
    WATCH,
    CompareCommand,
    LookCommand,
    scope_services,
)
from vipwire.inspect.earlier.look import find_earlier_chains
from vipwire.inspect.explain.document import explain_document, explain_view
from vipwire.inspect.explain.explanation import explain_here, remove_interface
from vipwire.inspect.explain.packet import check_destination, find_services, read_packet
from vipwire.inspect.node.flows import read_flows_of
from vipwire.inspect.node.silence import OBJECTS, Silences, format_silences
from vipwire.inspect.node.situation import Situation, observe_situation, open_kernel
from vipwire.inspect.node.source import follow_source, make_source, read_objects
from vipwire.inspect.status.counts import read_observed_counts
from vipwire.inspect.status.document import (
    Document,
    build_proxy_document,
    build_status_document,
    build_unread_document,
)
from vipwire.inspect.status.tables import build_status_view
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.net import Family
from vipwire.modes.inspection import inspection_of
from vipwire.modes.registry import find_selected_mode
from vipwire.plan.resolve import Packet
from vipwire.terminal.output import FAILED, print_error, print_warning


def _read_situation(config: Config) -> Situation:
    with open_kernel(config) as kernel:
        return observe_situation(config, read_objects(config), kernel)


@dataclass(frozen=True)
class OutputOptions:
    """The options of commands about Services: which Services, the output format, and whether to watch."""

    config: Config
    services: str
    output: str
    interval: float = 2.0
    watch: bool = False
    as_it_is: bool = False
    """Print lines unwrapped, as other programs read them."""
    details: bool = False
    """The user named Services: show each in full."""

    def show(
        self,
        document: Callable[[Situation], Document],
        view: Callable[[Document], RenderableType],
        without: Callable[[VipwireError], Document] | None = None,
    ) -> None:
        """Print a document once; with --watch, whenever the document changes.

        `without` describes what is known if the objects cannot be read; the command then ends with status 1.
        """
        try:
            if not self.watch:
                self.print(document(_read_situation(self.config)), view)
                return
            with open_kernel(self.config) as kernel:
                _print_changes(self, lambda store: document(observe_situation(self.config, store, kernel)), view)
        except VipwireError as error:
            if without is None:
                raise
            print_error(error)
            self.print(without(error), view)
            raise SystemExit(FAILED) from error

    def print(self, made: Document, view: Callable[[Document], RenderableType]) -> None:
        show.print_view(made, self.output, partial(_lay_out_with_silences, view), soft_wrap=self.as_it_is)


def _build_service_command(
    output: Callable[[Callable[..., None]], Callable[..., None]], kind: type[LookCommand] = LookCommand
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command about Services with the options SERVICE, -n, -A, -o, -w and --interval."""

    def made(body: Callable[..., None]) -> click.Command:
        @wraps(body)
        def run(
            config: Config,
            service: str,
            namespace: str,
            output: str,
            interval: float,
            *,
            everywhere: bool,
            watch: bool,
            **own: Any,
        ) -> None:
            services = scope_services(service, namespace, everywhere=everywhere)
            body(OutputOptions(config, services, output, interval, watch, details=bool(service)), **own)

        about = click.argument("service", default="", metavar="[SERVICE]")
        return click.command(cls=kind)(about(NAMESPACE(EVERYWHERE(output(WATCH(INTERVAL(run)))))))

    return made


@_build_service_command(SERVICES_OUTPUT)
def status(scope: OutputOptions) -> None:
    """Show Services: their addresses, the number of endpoints in use, and whether the kernel agrees.

    SERVICE is NAME, NAMESPACE/NAME, or NAMESPACE/ for all in a namespace; status then lists every address, and every
    endpoint with its share and the reason for or against its use. The first lines show whether a proxy runs here and
    the age of its last sync. No proxy needs to run: status reads the objects from manifests or the API server, and
    compares them with the kernel.
    """

    def document(situation: Situation) -> Document:
        found = find_services(situation.store.services, scope.services)
        counted = read_observed_counts(situation, (each.name for each in found))
        standing = inspection_of(find_selected_mode(scope.config)).standing(scope.config)
        earlier = find_earlier_chains(scope.config, (side.family for side in situation.sides))
        return build_status_document(situation, found, counted, build_proxy_document(scope.config), standing, earlier)

    scope.show(
        document,
        lambda made: build_status_view(made, wide=scope.output == "wide", details=scope.details),
        lambda error: build_unread_document(scope.config, error),
    )


def _lay_out_with_silences(view: Callable[[Document], RenderableType], document: Document) -> RenderableType:
    """Lay out a document below a line for each silent part; grey without a source of objects."""
    silent = document.get("silent")
    if not silent:
        return view(document)
    style = "dim" if any(each["part"] == OBJECTS for each in silent) else ""
    return Group(
        *(Text(line, style="bold yellow") for line in format_silences(silent)), Styled(view(document), style)
    )


def _print_changes(
    scope: OutputOptions, document: Callable[[Any], Document], view: Callable[[Document], RenderableType]
) -> None:
    """Print the document whenever it changes; on a terminal, in place."""
    last: list[Document] = []
    source, silences = make_source(scope.config), Silences()
    with Live(console=show.build_console(), auto_refresh=False, transient=False) as live:

        def look(store: Any) -> None:
            silences.record_source_error(source, time.time())
            silences.record_proxy_silence(scope.config, time.time())
            made = document(store) | {"silent": silences.documents()}
            if last[-1:] == [made]:
                return
            last[:] = [made]
            if scope.output in ("json", "yaml", "name"):
                scope.print(made, view)
            elif live.console.is_terminal:
                live.update(_lay_out_with_silences(view, show.escape_document(made)), refresh=True)
            else:
                live.console.print(time.strftime("%H:%M:%S"))
                laid_out = _lay_out_with_silences(view, show.escape_document(made))
                show.write_view(live.console, laid_out, soft_wrap=scope.as_it_is)

        try:
            follow_source(source, look, max(scope.interval, 0.1))
        except KeyboardInterrupt:
            return


@_build_service_command(SERVICES_OUTPUT)
def plan(scope: OutputOptions) -> None:
    """Show the plan of each Service: frontends, their endpoints, masquerading, refused and dropped packets, reasons.

    SERVICE is NAME, NAMESPACE/NAME, or NAMESPACE/ for all in a namespace.
    """

    def document(situation: Situation) -> Document:
        return decisions.plan_document(situation, find_services(situation.store.services, scope.services))

    scope.show(document, decisions.plan_view)


@_build_service_command(NAMED_OUTPUT, CompareCommand)
@click.option("--family", type=click.Choice(["ipv4", "ipv6"]), help="Show this family only.")
def diff(scope: OutputOptions, family: str | None) -> None:
    """Show the changes that a sync would make in the kernel, without making them.

    Prints the commands of the mode's own tool, under a comment that names the tool. iptables has a tool for each
    family: `vipwire diff --family ipv4 | iptables-restore --noflush`. The exit status is 0 without changes, 1 with
    changes, 2 if vipwire cannot read the kernel.
    """
    scope = replace(scope, as_it_is=True)
    families = [each for each in Family if family in (None, each.value.lower())]
    made: Document = {}

    def document(situation: Situation) -> Document:
        chosen = find_services(situation.store.services, scope.services) if scope.services else None
        made.update(difference.diff_document(situation, chosen, families))
        return dict(made)

    if scope.watch or scope.output in ("json", "yaml", "name"):
        scope.show(document, _build_script_view)
    else:
        _print_script(show.escape_document(document(_read_situation(scope.config))))
    sys.exit(difference.choose_diff_exit_status(made) if made else 0)


def _build_script_view(document: Document) -> Text:
    lines = [line for family in document["families"] for line in difference.write_script_lines(family)]
    if difference.choose_diff_exit_status(document) == 0:
        lines.append("# nothing would change")
    text = Text.assemble(*((f"{line}\n", _choose_line_style(line)) for line in lines))
    text.rstrip()
    return text


def _print_script(document: Document) -> None:
    console = show.build_console()
    for family in document["families"]:
        for line in difference.write_script_lines(family):
            console.print(line, style=_choose_line_style(line), markup=False, soft_wrap=True)
    changes = sum(
        sum(family[what] or 0 for what in ("missing", "different", "surplus")) for family in document["families"]
    )
    if not changes and not any(family["state"] == "unknown" for family in document["families"]):
        click.echo("# nothing would change", err=True)


def _choose_line_style(line: str) -> str:
    return "yellow" if line.startswith("# ") else "red" if line.startswith(("delete", "flush")) else "green"


def _leave_ipvs(config: Config, output: str) -> None:
    leaving, obstacles = read_leaving(config)
    document = leave_document(leaving, judge_leaving(leaving), obstacles)
    show.print_view(document, output, lambda made: leave_view(made, wide=output == "wide"))
    sys.exit(leave_exit(document))


_EXPLAIN = """Show the way of a new connection to DST:PORT: the endpoints that can answer, or the rule that drops it.

DST is an address, IPv6 in brackets, or a Service as NAMESPACE/NAME; PROTO is tcp (the default), udp or sctp. The
command shows the plan's answer, the source address that endpoints see, the kernel objects on the way, and whether
plan and kernel agree.

\b
  vipwire explain --from 10.244.1.5 10.96.0.10:80
  vipwire explain --from 203.0.113.2 192.168.0.1:30080
  vipwire explain default/dns:53/udp --flow

The exit status is 1 if the kernel would not do as planned.
"""


@click.command(cls=CompareCommand, help=_EXPLAIN)
@click.argument("destination", metavar="DST:PORT[/PROTO]")
@click.option("--from", "source", default="", metavar="IP", help="The client's address; the default is this node.")
@click.option(
    "--interface",
    default="",
    metavar="IF",
    help="Interface on which the packet arrives; the default follows from the routes.",
)
@click.option("--flow", is_flag=True, help="Also show this client's live connections from connection tracking.")
@NAMED_OUTPUT
@WATCH
@INTERVAL
def explain(
    config: Config, destination: str, output: str, interval: float, *, flow: bool, watch: bool, **client: str
) -> None:
    check_destination(destination)
    scope = OutputOptions(config, "", output, interval, watch)
    made: Document = {}

    def document(situation: Situation) -> Document:
        packet = remove_interface(read_packet(situation, client["source"], destination, client["interface"]))
        explanation = explain_here(situation, packet)
        if flow:
            explanation = replace(explanation, flows=_read_tracked_flows(packet))
        made.update(explain_document(explanation))
        return dict(made)

    scope.show(document, lambda said: explain_view(said, wide=output == "wide"))
    sys.exit(int(bool(made) and made["kernel"]["agrees"] is False))


def _read_tracked_flows(packet: Packet) -> tuple[Flow, ...] | None:
    """Find a client's connections. Without rights print a warning and return None."""
    try:
        return read_flows_of(packet)
    except UnsupportedError as error:
        print_warning(str(error))
        return None


@click.command(cls=CompareCommand)
@NAMED_OUTPUT
@WATCH
@INTERVAL
@click.option("--leave-ipvs", is_flag=True, help="List the changes on this node when kube-proxy's ipvs mode goes.")
def check(config: Config, output: str, interval: float, *, leave_ipvs: bool, watch: bool) -> None:
    """Check whether this machine can run the chosen mode: kernel, rights, tools, settings, other programs' rules.

    Every finding that needs action has a remedy. -o wide also lists the findings ok. The exit status is 1 if the mode
    will not work well here. check changes nothing, and needs no manifests and no API server.

    With --leave-ipvs check reads the configuration of the kube-proxy that runs here, the kernel and the Services, and
    lists the changes for clients and operators if vipwire runs instead, in the mode of --proxy-mode. The exit status
    is 0 without changes, 1 with changes, 2 if vipwire cannot read the kernel.
    """
    if leave_ipvs:
        if watch or output == "name":
            raise click.UsageError("--leave-ipvs runs once: leave out --watch and -o name")
        _leave_ipvs(config, output)
    mode, scope, last = config.proxy_mode, OutputOptions(config, "", output), None
    while True:
        document = check_document(list_findings(gather_facts(config), mode), mode)
        if document != last:
            scope.print(document, lambda made: check_view(made, wide=output == "wide"))
        if not watch:
            sys.exit(int(document["bad"] > 0))
        last = document
        try:
            time.sleep(max(interval, 0.1))
        except KeyboardInterrupt:
            sys.exit(int(document["bad"] > 0))
