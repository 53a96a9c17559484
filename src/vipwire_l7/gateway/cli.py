"""`vipwire gateway`, and `vipwire gateway render`."""

import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import click

from vipwire.errors import ConfigError
from vipwire.model.number import port_number
from vipwire.process.command_flags import with_flags
from vipwire.process.terminal import plain_errors
from vipwire_l7.ingress.cli import COMMON_FLAGS, INGRESS_FLAGS, PROCESS_FLAGS, options_of, print_rendered

_OWN_FLAGS: Final = (
    click.option(
        "--controller", default="vipwire.io/gateway", show_default=True, help="Our GatewayClasses' controller."
    ),
    click.option("--bind", default="*", show_default=True, help="Where Gateways listen that name no address."),
    click.option("--address", multiple=True, help="An address of this machine that Gateways may name; repeatable."),
    click.option(
        "--address-pool",
        multiple=True,
        help="Range of this machine's addresses, of which each Gateway that names none gets its own; repeatable.",
    ),
    click.option(
        "--services",
        help="NAMESPACE/NAME of the Service that selects our Pods: each Gateway gets a Service of its own, like it.",
    ),
    click.option(
        "--service-ports",
        default="20000-21999",
        show_default=True,
        help="Ports of this machine that Gateways' Services lead to: each of their ports gets one.",
    ),
    click.option(
        "--run-dir", type=click.Path(path_type=Path), default=Path("/run/vipwire-gateway"), show_default=True
    ),
)
_WITH_INGRESS: Final = click.option(
    "--ingress",
    is_flag=True,
    help="Serve Ingresses too, with the same HAProxy. The next five flags are theirs.",
)
_flags = with_flags(*COMMON_FLAGS[:3], *_OWN_FLAGS, _WITH_INGRESS, *INGRESS_FLAGS, *COMMON_FLAGS[3:])


@click.group(invoke_without_command=True)
@_flags
@with_flags(*PROCESS_FLAGS)
@click.option(
    "--publish-address", multiple=True, help="Address or name for the status of Gateways that name none; repeatable."
)
@click.option(
    "--lease",
    default="kube-system/vipwire-gateway",
    show_default=True,
    help="NAMESPACE/NAME of the Lease whose holder writes statuses; empty: every replica does.",
)
@click.option(
    "--udp-timeout",
    type=click.FloatRange(0.1, 86400.0),
    default=60.0,
    show_default=True,
    help="Seconds of silence after which a client of a UDPRoute may get another endpoint.",
)
@click.option("--metrics-bind-address", default="127.0.0.1:10255", show_default=True, help="Metrics and /healthz.")
@click.option("--takeover", is_flag=True, help="Take the place of the gateway that runs here; its HAProxy goes on.")
@click.pass_context
def gateway(context: click.Context, /, **given: Any) -> None:
    """Serve the Gateway API with HAProxy, which is started, configured and watched.

    GatewayClasses whose controller is ours, their Gateways, and the routes that attach to them. Hosts, paths and
    endpoints are changed while HAProxy runs; it is reloaded, without losing a connection, only where it must be.
    """
    if context.invoked_subcommand is not None:
        return
    from vipwire.config.sections import Logging  # noqa: PLC0415
    from vipwire.process import log  # noqa: PLC0415
    from vipwire_l7.ingress.run.app import run_ingress  # noqa: PLC0415  # not for --help

    log.configure(Logging(verbosity=given["verbosity"]))
    with plain_errors():
        parts = _parts(given)
        status = run_ingress(_options(given), lambda: parts.served)
    sys.exit(status)


@gateway.command()
@_flags
@click.option("--output-dir", type=click.Path(path_type=Path), help="Write haproxy.cfg, maps and certificates there.")
def render(output_dir: Path | None, **given: Any) -> None:
    """Print the configuration for people who run HAProxy themselves.

    With --output-dir all files are written there, ready for `haproxy -f DIR/haproxy.cfg`. Problems go to stderr.
    """

    def prepared(placed: dict[str, Any]) -> tuple[Any, ...]:
        parts = _parts(placed)
        return _options(placed), parts.served

    print_rendered(output_dir, given, prepared)


def _options(given: dict[str, Any]) -> Any:
    from vipwire_l7.ingress.plan.planner import CONTROLLER  # noqa: PLC0415  # not for --help

    none = {} if given["ingress"] else {"http": "", "https": ""}
    return options_of({**given, **none, "controller": CONTROLLER})


def _parts(given: dict[str, Any]) -> Any:
    from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting  # noqa: PLC0415  # not for --help
    from vipwire_l7.gateway.run.app import GatewayParts  # noqa: PLC0415
    from vipwire_l7.ingress.run.system_authorities import has_system_authorities  # noqa: PLC0415

    for flag, texts in (("--bind", (given["bind"],)), ("--address", given["address"])):
        for text in texts:
            _check_address(flag, text)
    published = tuple(given.get("publish_address", ()))
    bind = given["bind"]
    reached = published or ((bind.strip("[]"),) if bind not in ("*", "[::]", "0.0.0.0") else ())  # noqa: S104
    usable = frozenset(given["address"])
    pool = tuple(map(_network, given["address_pool"]))
    options = _options(given)
    services = _service(given, pool)
    reserved = frozenset(map(_place, filter(None, (options.layout.http, options.layout.https))))
    first = (given["controller"], given["zone"], bind, reached, usable, pool, reserved)
    authorities = cache(lambda: has_system_authorities(options.haproxy))
    setting = GatewaySetting(*first, *services, authorities)
    ingresses = options.setting if given["ingress"] else None
    return GatewayParts(setting, given.get("udp_timeout", 60.0), None if reached else _own_address, ingresses)


def _service(given: dict[str, Any], pool: tuple[Any, ...]) -> tuple[Any, range]:
    from vipwire.model.names import ObjectName  # noqa: PLC0415  # not for --help

    first, last = (port_number(each) for each in given["service_ports"].partition("-")[::2])
    if first is None or last is None or first > last:
        raise ConfigError(f"--service-ports: {given['service_ports']!r} is no range (such as 20000-21999)")
    numbers = range(first, last + 1)
    if not given["services"]:
        return None, numbers
    namespace, _, name = given["services"].partition("/")
    if not namespace or not name:
        raise ConfigError(f"--services: {given['services']!r} is not NAMESPACE/NAME")
    if pool:
        raise ConfigError("--services and --address-pool: a Gateway's address comes from one of them")
    if given["manifests"]:
        raise ConfigError("--services: Services are made at an API server, not in --manifests")
    return ObjectName(namespace, name), numbers


def _place(bind: str) -> str:
    host, _, port = bind.rpartition(":")
    return f"{'*' if host in ('', '*', '[::]', '::', '0.0.0.0') else host}:{port}"  # noqa: S104


def _network(text: str) -> Any:
    import ipaddress  # noqa: PLC0415  # not for --help

    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"--address-pool: {error} (such as 192.0.2.16/28)") from None


def _check_address(flag: str, text: str) -> None:
    import ipaddress  # noqa: PLC0415  # not for --help

    try:
        if text != "*":
            ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is no address (such as 192.0.2.1 or [2001:db8::1])") from None


def _own_address() -> tuple[str, ...]:
    """Return the address from which this machine reaches others, which others mostly reach it at."""
    import socket  # noqa: PLC0415  # not for --help

    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses
        except OSError:
            return ("127.0.0.1",)
        return (str(asking.getsockname()[0]),)
