"""The commands that look. Each makes a document and prints it: tables for a person, JSON or YAML for a program."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import RenderableType
from rich.live import Live

from vipwire.app.config import Config
from vipwire.inspect import decisions, difference, show
from vipwire.inspect.document import Document, status_document
from vipwire.inspect.near import find_services
from vipwire.inspect.options import OUTPUT, LookCommand
from vipwire.inspect.situation import Situation, opened, take
from vipwire.inspect.source import follow, list_once, make_source
from vipwire.inspect.status import status_view

_SERVICE = click.argument("service", default="", metavar="[SERVICE]")


def _looked(config: Config) -> Situation:
    """Read the objects and the kernel once."""
    with opened(config) as kernel:
        return take(config, list_once(make_source(config)), kernel)


def _warn(situation: Situation) -> None:
    for family, obstacle in situation.obstacles.items():
        click.echo(f"warning: {family}: what the kernel holds is unknown: {obstacle}", err=True)


def _print(document: Document, output: str, view: Callable[[], RenderableType]) -> None:
    if output in ("json", "yaml"):
        show.print_document(document, output)
    else:
        show.console().print(view())


@click.command(cls=LookCommand)
@_SERVICE
@OUTPUT
@click.option("--watch", "-w", is_flag=True, help="Go on looking until interrupted.")
@click.option("--interval", default=2.0, show_default=True, help="With --watch: seconds between looks.")
def status(config: Config, service: str, output: str, interval: float, *, watch: bool) -> None:
    """Show Services: where they are reached, their endpoints and each one's share, and whether the kernel agrees.

    SERVICE is NAME, NAMESPACE/NAME, or NAMESPACE/ for all in a namespace; with it, every endpoint is listed with the
    reason why it is used or not. No proxy needs to run: objects are read from manifests or the API server.
    """

    def document(situation: Situation) -> Document:
        return status_document(situation, find_services(situation.store.services, service))

    def view(made: Document) -> RenderableType:
        return status_view(made, wide=output == "wide", details=bool(service))

    if not watch:
        situation = _looked(config)
        made = document(situation)
        _print(made, output, lambda: view(made))
        return
    with opened(config) as kernel:
        _follow(config, interval, output, lambda store: document(take(config, store, kernel)), view)


def _follow(
    config: Config,
    interval: float,
    output: str,
    document: Callable[[Any], Document],
    view: Callable[[Document], RenderableType],
) -> None:
    """Print anew whenever something looks different, on a terminal in place."""
    last: list[Document] = []
    with Live(console=show.console(), auto_refresh=False, transient=False) as live:

        def look(store: Any) -> None:
            made = document(store)
            if last[-1:] == [made]:
                return
            last[:] = [made]
            if output in ("json", "yaml"):
                show.print_document(made, output)
            elif live.console.is_terminal:
                live.update(view(made), refresh=True)
            else:
                live.console.print(time.strftime("%H:%M:%S"), view(made), sep="\n")

        try:
            follow(make_source(config), look, max(interval, 0.1))
        except KeyboardInterrupt:
            return


@click.command(cls=LookCommand)
@_SERVICE
@OUTPUT
def plan(config: Config, service: str, output: str) -> None:
    """Show what is decided for each Service, and why: who answers at which address, who sees whom, what is dropped.

    SERVICE is NAME, NAMESPACE/NAME, or NAMESPACE/ for all in a namespace.
    """
    situation = _looked(config)
    document = decisions.plan_document(situation, find_services(situation.store.services, service))
    _print(document, output, lambda: decisions.plan_view(document))


@click.command(cls=LookCommand)
@_SERVICE
@OUTPUT
def diff(config: Config, service: str, output: str) -> None:
    """Show what a sync would change in the kernel, without changing it.

    Prints the commands of the mode's own tool (for nftables: what `nft -f` takes). The exit status is 0 if nothing
    would change, 1 if anything would, 2 if that cannot be told.
    """
    situation = _looked(config)
    chosen = find_services(situation.store.services, service) if service else None
    document = difference.diff_document(situation, chosen)
    _warn(situation)
    if output in ("json", "yaml"):
        show.print_document(document, output)
    else:
        _print_script(document)
    sys.exit(difference.diff_exit(document))


def _print_script(document: Document) -> None:
    console = show.console()
    for family in document["families"]:
        if family.get("reason"):
            console.print(f"# {family['family']}: {family['reason']}", style="yellow", markup=False)
        for line in family["script"]:
            style = "red" if line.startswith(("delete", "flush")) else "green"
            console.print(line, style=style, markup=False, soft_wrap=True)
    changes = sum(
        sum(family[what] or 0 for what in ("missing", "different", "surplus")) for family in document["families"]
    )
    if not changes and not any(family["state"] == "unknown" for family in document["families"]):
        click.echo("# nothing would change", err=True)
