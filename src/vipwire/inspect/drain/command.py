"""`vipwire drain`: take an endpoint out of the choice on this node, and see its connections end."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import click

from vipwire.config.configuration import Config
from vipwire.config.kinds import parse_duration
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.inspect.command import show
from vipwire.inspect.command.options import NAMED_OUTPUT, LookCommand
from vipwire.inspect.drain.consequences import (
    concerned,
    connections,
    in_kernel,
    newly_unserved,
    read_drain,
    require_concerned,
)
from vipwire.inspect.drain.view import connections_view, drain_view, list_view
from vipwire.inspect.node.situation import Situation, now_drained, opened, planned, take
from vipwire.inspect.node.source import node_name, read_objects
from vipwire.inspect.status.document import Document
from vipwire.model.node import Drain
from vipwire.process.terminal import warn
from vipwire.proxy.drains import DrainOrder, change_orders, drains_path, in_force, read_orders
from vipwire.state.store import Store

_PATIENCE: Final = 10.0
"""Seconds for the proxy to put a change into the kernel."""
_LOOK_SECONDS: Final = 0.2
_WAIT_SECONDS: Final = 1.0

_HELP = """Give an endpoint no new connections on this node, and let those that it has go on.

ENDPOINT is IP, IP:port or [IPv6]:port, as `vipwire status SERVICE` shows it. It is as if its weight were 0: it is
drained for every Service that has it, or for the one of --service, in every mode, until --undo, or for the time of
--timeout, or until this machine restarts; a restart of the proxy changes nothing. Other nodes go on to use it.

\b
  vipwire drain 10.244.1.5 --wait            and then do what is to be done to it
  vipwire drain 10.244.1.5:80 --service default/web --timeout 30m
  vipwire drain 10.244.1.5 --undo
  vipwire drain --list

It is refused where a Service would have no endpoint left (--force). What is drained is kept below --state-dir, where
only root writes. The exit status is 1 if the kernel does not follow, or if connections are left at the end of --wait.
"""


@dataclass(frozen=True, slots=True)
class _DrainRequest:
    """The command line of `vipwire drain`."""

    endpoint: str
    service: str
    timeout: float | None
    undo: bool
    force: bool
    wait: bool
    output: str


@click.command(cls=LookCommand, help=_HELP)
@click.argument("endpoint", default="", metavar="[ENDPOINT]")
@click.option("--service", default="", metavar="NS/NAME", help="Drain it for this Service only.")
@click.option("--undo", is_flag=True, help="Use the endpoint again.")
@click.option(
    "--timeout", default="", metavar="DURATION", help="Use it again by itself after this time (30m, 1h30m)."
)
@click.option("--force", is_flag=True, help="Also where a Service has no endpoint left then.")
@click.option("--wait", is_flag=True, help="Follow its connections until none is left.")
@click.option("--list", "listing", is_flag=True, help="Show what is drained on this node.")
@NAMED_OUTPUT
def drain(config: Config, endpoint: str, service: str, timeout: str, output: str, **flags: bool) -> None:
    """Drain an endpoint."""
    undo, listing = flags["undo"], flags["listing"]
    if listing == bool(endpoint) or (undo and timeout):
        raise click.UsageError("give an ENDPOINT, or --list without one; --undo takes no --timeout")
    seconds = _seconds(timeout) if timeout else None
    wish = _DrainRequest(endpoint, service, seconds, undo, flags["force"], flags["wait"], output)
    store = read_objects(config)
    if listing:
        _list(config, store, output)
    else:
        sys.exit(_undo(config, store, wish) if undo else _drain(config, store, wish))


def _seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    if seconds <= 0:
        raise click.UsageError("--timeout: must be more than 0")
    return seconds


def _drain(config: Config, store: Store, wish: _DrainRequest) -> int:
    before = planned(config, store)
    wanted = read_drain(before, wish.endpoint, wish.service)
    names = require_concerned(before, wanted)
    lost = newly_unserved(before, planned(config, store, now_drained(config) | {wanted}))
    if lost and not wish.force:
        raise ConfigError("\n".join([*lost, "nothing is drained; --force drains it all the same"]))
    now = time.time()
    until = None if wish.timeout is None else now + wish.timeout

    def add(orders: tuple[DrainOrder, ...]) -> list[DrainOrder]:
        kept = [order for order in orders if order.drain != wanted and (order.until is None or now < order.until)]
        return [*kept, DrainOrder(wanted, now, until)]

    _change(config, add)
    document = _followed(config, store, wanted)
    document |= {"services": [str(name) for name in names], "drained": True, "until": show.shown_time(until)}
    _say(document, wish.output)
    if wish.wait and not _emptied(config, store, wanted, until, wish.output):
        return 1
    return int(document["kernel"] is False)


def _undo(config: Config, store: Store, wish: _DrainRequest) -> int:
    wanted = read_drain(planned(config, store), wish.endpoint, wish.service)
    there = _orders(config)
    fitting = {each.drain for each in there if _fits(each.drain, wanted)}
    if not fitting:
        drained = ", ".join(str(order.drain) for order in there)
        raise ConfigError(f"{wanted} is not drained; {f'drained is {drained}' if drained else 'nothing is'}")
    _change(config, lambda orders: [order for order in orders if order.drain not in fitting])
    document = _followed(config, store, wanted)
    services = [str(name) for name in concerned(planned(config, store), wanted)]
    _say(document | {"services": services, "drained": False, "until": None}, wish.output)
    return int(document["kernel"] is False)


def _fits(drained: Drain, wanted: Drain) -> bool:
    """Report whether what is drained is meant: what is not said of it may be anything."""
    same_port = wanted.port is None or drained.port == wanted.port
    same_service = wanted.service is None or drained.service == wanted.service
    return drained.address == wanted.address and same_port and same_service


def _orders(config: Config) -> tuple[DrainOrder, ...]:
    now = time.time()
    orders = read_orders(drains_path(config.state_dir, node_name(config)))
    return tuple(order for order in orders if order.drain in in_force([order], now))


def _change(config: Config, change: Callable[[tuple[DrainOrder, ...]], list[DrainOrder]]) -> None:
    path = drains_path(config.state_dir, node_name(config))
    try:
        change_orders(path, change)
    except PermissionError as error:
        raise UnsupportedError(
            f"{path} cannot be written ({error.strerror}): run it as root; --list works without"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); --state-dir names another folder") from error


def _followed(config: Config, store: Store, wanted: Drain) -> Document:
    """Wait until the kernel is as planned now, for a while, and tell what is so."""
    deadline = time.monotonic() + _PATIENCE
    with opened(config) as kernel:
        while True:
            situation = take(config, store, kernel)
            follows = in_kernel(situation, {name.service for name in concerned(situation, wanted)})
            if follows is not False or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
    return {
        "kind": "Drain",
        "node": situation.node_name,
        "endpoint": str(wanted),
        "kernel": follows,
        "connections": _count(situation, wanted),
    }


def _count(situation: Situation, wanted: Drain) -> dict[str, int] | None:
    try:
        return connections(situation, wanted)._asdict()
    except UnsupportedError as error:
        warn(str(error))
        return None


def _emptied(config: Config, store: Store, wanted: Drain, until: float | None, output: str) -> bool:
    """Follow the connections until none is open; False if that is interrupted, or the drain ends before."""
    last: dict[str, int] | None = None
    quiet = False
    with suppress(KeyboardInterrupt):
        while until is None or time.time() < until:
            left = _count(planned(config, store), wanted)
            if left is None:
                return False
            if left != last:
                last = left
                progress = {"kind": "DrainProgress", "endpoint": str(wanted), "connections": left}
                show.print_view(progress, output, connections_view, soft_wrap=True)
            if left["open"] == 0 and quiet:
                return True
            quiet = left["open"] == 0  # a handshake may be under way: look once more
            time.sleep(_WAIT_SECONDS)
    return False


def _list(config: Config, store: Store, output: str) -> None:
    situation = planned(config, store)
    rows = [
        {
            "endpoint": str(order.drain._replace(service=None)),
            "service": None if order.drain.service is None else str(order.drain.service),
            "since": show.shown_time(order.since),
            "until": show.shown_time(order.until),
            "services": [str(name) for name in concerned(situation, order.drain)],
            "connections": _count(situation, order.drain),
        }
        for order in _orders(config)
    ]
    drained = {"kind": "DrainList", "node": situation.node_name, "drained": rows}
    show.print_view(drained, output, list_view, soft_wrap=True)


def _say(document: Document, output: str) -> None:
    show.print_view(document, output, drain_view, soft_wrap=True)
    if document["kernel"] is False:
        warn(
            f"the kernel has not followed in {_PATIENCE:g} seconds: does `vipwire proxy` run here, with the same "
            "--hostname-override, --state-dir and mode?"
        )
