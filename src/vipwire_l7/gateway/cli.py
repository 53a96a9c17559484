"""`vipwire gateway`, and `vipwire gateway render`."""

from pathlib import Path
from types import ModuleType
from typing import Final

import click

from vipwire.terminal.command_flags import with_flags
from vipwire_l7.ingress.cli import COMMON_FLAGS, INGRESS_FLAGS, PROCESS_FLAGS

_OWN_FLAGS: Final = (
    click.option(
        "--controller",
        default="vipwire.io/gateway",
        show_default=True,
        help="The controllerName of the GatewayClasses to serve.",
    ),
    click.option(
        "--bind", default="*", show_default=True, help="Address at which Gateways without spec.addresses listen."
    ),
    click.option(
        "--address",
        multiple=True,
        help="Address of this machine that spec.addresses of a Gateway may have; repeatable.",
    ),
    click.option(
        "--address-pool",
        multiple=True,
        help="Range of this machine's addresses: each Gateway without spec.addresses gets one; repeatable.",
    ),
    click.option(
        "--services",
        help="NAMESPACE/NAME of the Service that selects vipwire's Pods: each Gateway gets a Service like it.",
    ),
    click.option(
        "--service-ports",
        default="20000-21999",
        show_default=True,
        help="Ports of this machine for the Services of Gateways: each port of a Service forwards to one.",
    ),
    click.option(
        "--run-dir", type=click.Path(path_type=Path), default=Path("/run/vipwire-gateway"), show_default=True
    ),
)
_WITH_INGRESS: Final = click.option(
    "--ingress",
    is_flag=True,
    help="Serve Ingresses too, with the same HAProxy. The next five flags apply to Ingresses.",
)
_flags = with_flags(*COMMON_FLAGS[:3], *_OWN_FLAGS, _WITH_INGRESS, *INGRESS_FLAGS, *COMMON_FLAGS[3:])


def _import_command() -> ModuleType:
    """Import the implementation late: `--help` and completion do not need it."""
    from vipwire_l7.gateway import command  # noqa: PLC0415

    return command


@click.group(invoke_without_command=True)
@_flags
@with_flags(*PROCESS_FLAGS)
@click.option(
    "--publish-address",
    multiple=True,
    help="Address or name for the status of Gateways without spec.addresses; repeatable.",
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
@click.option(
    "--metrics-bind-address", default="127.0.0.1:10255", show_default=True, help="Metrics, /readyz and /livez."
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Take over from the gateway that runs on this machine; its HAProxy keeps running.",
)
@click.pass_context
def gateway(context: click.Context, /, **given: object) -> None:
    """Serve the Gateway API with HAProxy, which vipwire starts, configures and watches.

    vipwire serves the Gateways of its GatewayClasses, and the routes that attach to them. vipwire changes hosts,
    paths and endpoints while HAProxy runs, and reloads HAProxy for other changes, without a lost connection.
    """
    if context.invoked_subcommand is not None:
        return
    _import_command().serve(given)


@gateway.command()
@_flags
@click.option("--output-dir", type=click.Path(path_type=Path), help="Write haproxy.cfg, maps and certificates there.")
def render(output_dir: Path | None, **given: object) -> None:
    """Print the configuration, for operators who run HAProxy themselves.

    With --output-dir, vipwire writes all files there, ready for `haproxy -f DIR/haproxy.cfg`. Problems go to stderr.
    """
    _import_command().render(output_dir, given)
