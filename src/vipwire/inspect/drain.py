"""`vipwire drain`: gives an endpoint no new connections on this node, and waits for its connections to end."""

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import click
from rich.console import RenderableType
from rich.text import Text

from vipwire.config.configuration import Config
from vipwire.config.kinds import parse_duration
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.file_io.files import check_owner
from vipwire.inspect.command import show
from vipwire.inspect.command.options import NAMED_OUTPUT, LookCommand
from vipwire.inspect.explain.packet import find_services, suggest_words
from vipwire.inspect.node.flows import Frontends, list_tracked_flows
from vipwire.inspect.node.situation import Situation, observe_situation, open_kernel, plan_situation, read_drained
from vipwire.inspect.node.source import node_name, read_objects
from vipwire.inspect.status.document import Document
from vipwire.linux.netlink.conntrack import Flow
from vipwire.model.names import ObjectName, ServicePortName
from vipwire.model.net import Address, AddressPort, Protocol, format_address, format_endpoint, parse_address
from vipwire.model.node import Drain
from vipwire.model.text import port_number
from vipwire.modes.registry import find_selected_mode
from vipwire.plan.plan import Forward
from vipwire.proxy_daemon.drains import (
    DrainOrder,
    boot_time,
    change_orders,
    drains_path,
    read_orders,
    seconds_since_boot,
    select_in_force,
)
from vipwire.terminal.columns import Column
from vipwire.terminal.output import print_warning
from vipwire.watched_objects.store import Store

PATIENCE = 10.0
"""Seconds for the proxy to program a change."""
_LOOK_SECONDS: Final = 0.2
_WAIT_SECONDS: Final = 1.0

_HELP = """Give an endpoint no new connections on this node; its open connections continue.

ENDPOINT is IP, IP:port or [IPv6]:port, as `vipwire status SERVICE` shows. vipwire treats its weight as 0: it is
drained for every Service that has it, or for the one of --service, in every mode, until --undo, or for the time of
--timeout, or until this machine restarts; a restart of the proxy changes nothing. Other nodes still use it.

\b
  vipwire drain 10.244.1.5 --wait            and then stop or repair it
  vipwire drain 10.244.1.5:80 --service default/web --timeout 30m
  vipwire drain 10.244.1.5 --undo
  vipwire drain --list

vipwire refuses to drain the last endpoint of a Service; --force overrides this. The list of drained endpoints is in
--state-dir, where only root writes. The exit status is 1 if the kernel still has the endpoint, or if connections
remain at the end of --wait.
"""


@dataclass(frozen=True, slots=True)
class _DrainRequest:
    endpoint: str
    service: str
    timeout: float | None
    force: bool
    wait: bool
    output: str


@click.command(cls=LookCommand, help=_HELP)
@click.argument("endpoint", default="", metavar="[ENDPOINT]")
@click.option("--service", default="", metavar="NS/NAME", help="Drain the endpoint for this Service only.")
@click.option("--undo", is_flag=True, help="Use the endpoint again.")
@click.option("--timeout", default="", metavar="DURATION", help="End the drain after this time (30m, 1h30m).")
@click.option("--force", is_flag=True, help="Drain the endpoint even if a Service then has none.")
@click.option("--wait", is_flag=True, help="Wait until the endpoint's last connection ends.")
@click.option("--list", "listing", is_flag=True, help="List the endpoints that are drained on this node.")
@NAMED_OUTPUT
def drain(config: Config, endpoint: str, service: str, timeout: str, output: str, **flags: bool) -> None:
    undo, listing = flags["undo"], flags["listing"]
    if listing == bool(endpoint) or (undo and timeout):
        raise click.UsageError("give an ENDPOINT, or --list without one; --undo takes no --timeout")
    seconds = _parse_seconds(timeout) if timeout else None
    wish = _DrainRequest(endpoint, service, seconds, flags["force"], flags["wait"], output)
    store = read_objects(config)
    if listing:
        _list_drains(config, store, output)
    else:
        sys.exit(_remove_drain(config, store, wish) if undo else _add_drain(config, store, wish))


def _parse_seconds(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise click.UsageError(f"--timeout: {error}") from None
    if seconds <= 0:
        raise click.UsageError("--timeout: must be more than 0")
    return seconds


def _add_drain(config: Config, store: Store, wish: _DrainRequest) -> int:
    before = plan_situation(config, store)
    wanted = read_drain(before, wish.endpoint, wish.service)
    names = require_concerned(before, wanted)
    lost = find_newly_unserved(before, plan_situation(config, store, read_drained(config) | {wanted}))
    if lost and not wish.force:
        raise ConfigError("\n".join([*lost, "no endpoint was drained; to drain it nevertheless, use --force"]))
    now = seconds_since_boot()
    until = None if wish.timeout is None else now + wish.timeout

    def add(orders: tuple[DrainOrder, ...]) -> list[DrainOrder]:
        kept = [order for order in orders if order.drain != wanted and (order.until is None or now < order.until)]
        return [*kept, DrainOrder(wanted, now, until)]

    _change_orders(config, add)
    document = _wait_for_kernel(config, store, wanted)
    document |= {"services": [str(name) for name in names], "drained": True, "until": _format_moment(until)}
    _print_result(document, wish.output)
    if wish.wait and not _wait_until_closed(config, store, wanted, until, wish.output):
        return 1
    return int(document["kernel"] is False)


def _remove_drain(config: Config, store: Store, wish: _DrainRequest) -> int:
    wanted = read_drain(plan_situation(config, store), wish.endpoint, wish.service)
    there = _read_orders(config)
    fitting = {each.drain for each in there if _matches_drain(each.drain, wanted)}
    if not fitting:
        drained = ", ".join(str(order.drain) for order in there)
        raise ConfigError(f"{wanted} is not drained; {f'drained: {drained}' if drained else 'no endpoint is'}")
    _change_orders(config, lambda orders: [order for order in orders if order.drain not in fitting])
    document = _wait_for_kernel(config, store, wanted)
    services = [str(name) for name in find_concerned(plan_situation(config, store), wanted)]
    _print_result(document | {"services": services, "drained": False, "until": None}, wish.output)
    return int(document["kernel"] is False)


def _matches_drain(drained: Drain, wanted: Drain) -> bool:
    """Report whether a drain matches `wanted`; fields that are not given match all."""
    same_port = wanted.port is None or drained.port == wanted.port
    same_service = wanted.service is None or drained.service == wanted.service
    return drained.address == wanted.address and same_port and same_service


def _read_orders(config: Config) -> tuple[DrainOrder, ...]:
    now = seconds_since_boot()
    orders = read_orders(drains_path(config.state_dir, node_name(config)))
    return tuple(order for order in orders if order.drain in select_in_force([order], now))


def _change_orders(config: Config, change: Callable[[tuple[DrainOrder, ...]], list[DrainOrder]]) -> None:
    path = drains_path(config.state_dir, node_name(config))
    check_owner(path.parent, "--state-dir")
    try:
        change_orders(path, change)
    except PermissionError as error:
        raise UnsupportedError(
            f"{path} cannot be written ({error.strerror}): run it as root; --list works without"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); --state-dir names another folder") from error


def _wait_for_kernel(config: Config, store: Store, wanted: Drain) -> Document:
    """Wait until the kernel agrees with the plan, at most `PATIENCE` seconds, and report the result."""
    deadline = time.monotonic() + PATIENCE
    with open_kernel(config) as kernel:
        while True:
            situation = observe_situation(config, store, kernel)
            follows = is_in_kernel(situation, {name.service for name in find_concerned(situation, wanted)})
            if follows is not False or time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
    return {
        "kind": "Drain",
        "node": situation.node_name,
        "endpoint": str(wanted),
        "kernel": follows,
        "connections": _count_connections(situation, wanted),
    }


def _count_connections(situation: Situation, wanted: Drain) -> dict[str, int] | None:
    try:
        return count_drained_connections(situation, wanted)._asdict()
    except UnsupportedError as error:
        print_warning(str(error))
        return None


def _wait_until_closed(config: Config, store: Store, wanted: Drain, until: float | None, output: str) -> bool:
    """Follow the connections until none is open; False if the user interrupts or the drain ends first."""
    last: dict[str, int] | None = None
    quiet = False
    with suppress(KeyboardInterrupt):
        while until is None or seconds_since_boot() < until:
            left = _count_connections(plan_situation(config, store), wanted)
            if left is None:
                return False
            if left != last:
                last = left
                progress = {"kind": "DrainProgress", "endpoint": str(wanted), "connections": left}
                show.print_view(progress, output, build_connections_view, soft_wrap=True)
            if left["open"] == 0 and quiet:
                return True
            quiet = left["open"] == 0  # a handshake may be under way: look once more
            time.sleep(_WAIT_SECONDS)
    return False


def _list_drains(config: Config, store: Store, output: str) -> None:
    situation = plan_situation(config, store)
    rows = [
        {
            "endpoint": str(order.drain._replace(service=None)),
            "service": None if order.drain.service is None else str(order.drain.service),
            "since": _format_moment(order.since),
            "until": _format_moment(order.until),
            "services": [str(name) for name in find_concerned(situation, order.drain)],
            "connections": _count_connections(situation, order.drain),
        }
        for order in _read_orders(config)
    ]
    drained = {"kind": "DrainList", "node": situation.node_name, "drained": rows}
    show.print_view(drained, output, list_view, soft_wrap=True)


def _format_moment(moment: float | None) -> str | None:
    return show.format_time(None if moment is None else boot_time() + moment)


def _print_result(document: Document, output: str) -> None:
    show.print_view(document, output, build_drain_view, soft_wrap=True)
    if document["kernel"] is False:
        print_warning(
            f"the kernel still has the endpoint after {PATIENCE:g} seconds: check that `vipwire proxy` runs here, "
            "with the same --hostname-override, --state-dir and mode"
        )


_CLOSING_SECONDS: Final = 120
"""The longest that the kernel keeps a TCP connection that begins or has ended (nf_conntrack_proto_tcp.c)."""


def read_drain(situation: Situation, endpoint: str, service: str) -> Drain:
    """Read `IP`, `IP:port` or `[IPv6]:port`, and a Service's name or "". Raise ConfigError."""
    address, port = _read_place(endpoint)
    if not service:
        return Drain(address, port)
    found = find_services(situation.store.services, service)
    if len(found) > 1:
        raise ConfigError(f"{service} means {len(found)} Services: {', '.join(str(each.name) for each in found)}")
    return Drain(address, port, found[0].name)


def _read_place(text: str) -> tuple[Address, int | None]:
    try:
        return parse_address(text.strip("[]")), None
    except ValueError:
        host, _, port = text.rpartition(":")
    with contextlib.suppress(ValueError):
        if (number := port_number(port)) is not None:
            return parse_address(host.strip("[]")), number
    raise ConfigError(f"{text!r} is not an endpoint: write IP, IP:port or [IPv6]:port")


def list_endpoints(situation: Situation) -> Iterator[tuple[ServicePortName, AddressPort]]:
    """Yield every endpoint of every Service that this node serves, with its Service port."""
    for name, service in situation.store.services.items():
        for piece in situation.store.view(name)[1]:
            for port in service.ports:
                for theirs in piece.ports:
                    if (theirs.name, theirs.protocol) == (port.name, port.protocol):
                        for each in piece.endpoints:
                            yield service.port_name(port), (each.address, theirs.port)


def find_concerned(situation: Situation, drain: Drain) -> tuple[ServicePortName, ...]:
    """Return the Service ports that have the endpoint, sorted."""
    found = {name for name, place in list_endpoints(situation) if drain.covers(name.service, *place)}
    return tuple(sorted(found, key=str))


def require_concerned(situation: Situation, drain: Drain) -> tuple[ServicePortName, ...]:
    """Return the Service ports that have the endpoint. Raise ConfigError with similar ones if there is none."""
    found = find_concerned(situation, drain)
    if found:
        return found
    there = {place for name, place in list_endpoints(situation) if drain.service in (None, name.service)}
    of = f" of {drain.service}" if drain.service else ""
    raise ConfigError(f"there is no endpoint {drain._replace(service=None)}{of}{_find_similar(drain, there)}")


def _find_similar(drain: Drain, there: Iterable[AddressPort]) -> str:
    texts = sorted(format_address(a) if drain.port is None else format_endpoint(a, port) for a, port in there)
    wanted = str(drain._replace(service=None))
    nearest = sorted(set(texts), key=lambda text: -difflib.SequenceMatcher(None, wanted, text).ratio())
    return suggest_words(wanted, nearest) if len(nearest) <= 6 else f"; near it: {', '.join(nearest[:3])}"


def find_newly_unserved(before: Situation, after: Situation) -> tuple[str, ...]:
    """Return the frontends that lose their last endpoint by a change of drains."""
    found: dict[str, None] = {}
    for old, new in zip(before.sides, after.sides, strict=True):
        for key, frontend in old.plan.frontends.items():
            then = new.plan.frontends[key]
            if isinstance(frontend.action, Forward) and not isinstance(then.action, Forward):
                reason = then.action.reason.value.replace("has no", "would have no")
                found[f"{then.port_name} {reason} left for {key}"] = None
    return tuple(found)


class DrainedConnections(NamedTuple):
    """An endpoint's connections: established ones, and those that begin or have ended."""

    open: int = 0
    closing: int = 0


def count_drained_connections(situation: Situation, drain: Drain) -> DrainedConnections:
    """Count the connections through this node to a drained endpoint. Raise UnsupportedError without rights."""
    frontends = Frontends.of(situation)
    flows = [flow for flow in list_tracked_flows() if _leads_to_drained(situation, frontends, flow, drain)]
    closing = sum(flow.protocol == Protocol.TCP.value and flow.timeout <= _CLOSING_SECONDS for flow in flows)
    return DrainedConnections(len(flows) - closing, closing)


def _leads_to_drained(situation: Situation, frontends: Frontends, flow: Flow, drain: Drain) -> bool:
    if find_selected_mode(situation.config).direct and flow.destination == flow.reply_source == drain.address:
        return drain.port in (None, flow.destination_port)  # conntrack does not record the Service
    if find_selected_mode(situation.config).relays:  # in this mode the proxy itself is the endpoint's client
        there, ours = (flow.destination, flow.destination_port), flow.source in situation.own_addresses
    else:
        there, ours = (flow.reply_source, flow.reply_source_port), flow.destination != flow.reply_source
    if not ours or there[0] != drain.address or drain.port not in (None, there[1]):
        return False
    if drain.service is None or find_selected_mode(situation.config).relays:
        return True
    name = frontends.name(flow)
    return name is not None and name.service == drain.service


def is_in_kernel(situation: Situation, names: Iterable[ObjectName]) -> bool | None:
    """Report whether the kernel holds the plan of these Services; None if the kernel cannot be read."""
    wanted = list(names)
    drifts = [side.compute_drift(name) for side in situation.sides for name in wanted]
    if any(drift is None for drift in drifts):
        return None
    return not any(drifts)


def build_drain_view(document: Document) -> RenderableType:
    names = ", ".join(document["services"]) or "no Service"
    what = "drained" if document["drained"] else "used again"
    until = f" until {document['until']}" if document["until"] else ""
    kernel = {True: "as planned", False: "not as planned", None: "unknown"}[document["kernel"]]
    text = Text(f"{document['endpoint']} is {what} on {document['node']}{until}: {names}\nkernel: ")
    text.append_text(show.colour_word(kernel))
    if document["drained"] and document["connections"] is not None:
        text.append("\n").append_text(build_connections_view(document))
    return text


def build_connections_view(document: Document) -> Text:
    left: dict[str, Any] = document["connections"]
    closing = f" ({left['closing']} more are just opening or closing)" if left["closing"] else ""
    return Text(f"{left['open'] or 'no'} connection{'s' * (left['open'] != 1)} left{closing}")


def list_view(document: Document) -> RenderableType:
    if not document["drained"]:
        return Text(f"no endpoint is drained on {document['node']}")
    rows = []
    for each in document["drained"]:
        left = "unknown" if each["connections"] is None else build_connections_view(each).plain
        served = "\n".join(each["services"]) or "no endpoint has it any more"
        until = each["until"] or "undone"
        rows.append([each["endpoint"], each["service"] or "all", served, each["since"], until, left])
    columns = [
        *(Column("endpoint"), Column("drained for", rank=3), Column("used by")),
        *(Column("since", rank=2), Column("until", rank=1), Column("connections")),
    ]
    return show.build_table(columns, rows)
