"""`vipwire ingress`, and `vipwire ingress render`."""

from pathlib import Path
from types import ModuleType
from typing import Final

import click
from click.core import ParameterSource

from vipwire.terminal.command_flags import with_flags


def _refuse_in_argv(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a secret in the command line: every user of the machine can read it."""
    if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--cookie-key: other users can read it here: write it to a file for --cookie-key-file")
    return value


INGRESS_FLAGS: Final = (
    click.option("--ingress-class", default="vipwire", show_default=True, help="The IngressClass to serve."),
    click.option("--watch-ingress-without-class", is_flag=True, help="Serve Ingresses without a class, too."),
    click.option("--hosts-apart", is_flag=True, help="Give each host to one namespace, that of its oldest Ingress."),
    click.option("--http", default="*:80", show_default=True, help="Address and port for HTTP; empty for none."),
    click.option("--https", default="*:443", show_default=True, help="Address and port for HTTPS; empty for none."),
)
_OWN_FLAGS: Final = (
    INGRESS_FLAGS[0],
    click.option(
        "--controller",
        default="vipwire.io/ingress",
        show_default=True,
        help="The spec.controller of the IngressClasses to serve.",
    ),
    *INGRESS_FLAGS[1:],
    click.option(
        "--run-dir", type=click.Path(path_type=Path), default=Path("/run/vipwire-ingress"), show_default=True
    ),
)
COMMON_FLAGS: Final = (
    click.option("--manifests", multiple=True, type=click.Path(path_type=Path), help="Files or folders of objects."),
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig file of the API server."),
    click.option("--master", default="", help="URL of the API server."),
    click.option(
        "--zone", default="", envvar="VIPWIRE_ZONE", help="Zone of this node, for the zone hints of endpoints."
    ),
    click.option("--accept-proxy", is_flag=True, help="Expect a PROXY protocol header from clients."),
    click.option(
        "--trust-forwarded-headers", is_flag=True, help="Trust X-Forwarded-* headers: all clients are load balancers."
    ),
    click.option("--access-log", default="", help="Log requests as JSON: to stdout, or to ADDRESS:PORT of a syslog."),
    click.option("--allow-external-name", is_flag=True, help="Connect to the names of ExternalName Services."),
    click.option(
        "--allow-target-range",
        multiple=True,
        help="CIDR of loopback, node or API server addresses that backends may have; repeatable.",
    ),
    click.option(
        "--cluster-domain",
        default="cluster.local",
        show_default=True,
        help="DNS domain of the cluster: an ExternalName in it may only name a Service of the same namespace.",
    ),
    click.option("--resolver", multiple=True, help="DNS server (ADDRESS:PORT) for ExternalName; may be repeated."),
    click.option(
        "--cookie-key-file",
        type=click.Path(path_type=Path),
        help="File with the key of affinity cookies, the same for all replicas; default: $VIPWIRE_COOKIE_KEY.",
    ),
    click.option(
        "--cookie-key", default="vipwire", envvar="VIPWIRE_COOKIE_KEY", hidden=True, callback=_refuse_in_argv
    ),
    click.option("--threads", default=0, help="Threads of HAProxy; 0 is one for each CPU."),
    click.option("--max-connections", default=0, help="Maximum of concurrent connections; with 0 HAProxy decides."),
    click.option(
        "--namespace-limit",
        multiple=True,
        help="KIND=NUMBER: maximum of hosts, paths, backends, endpoints, certificates or listeners of a namespace, "
        "and of reloads, statuses or events a minute; repeatable.",
    ),
    click.option("--default-certificate", type=click.Path(path_type=Path), help="PEM file with certificate and key."),
)
PROCESS_FLAGS: Final = (
    click.option("--haproxy", default="haproxy", show_default=True, help="The HAProxy program."),
    click.option(
        "--haproxy-user",
        default="",
        help="User of HAProxy's workers if vipwire runs as root; default: haproxy or nobody; - for root.",
    ),
    click.option("--reload-pause", default=1.0, show_default=True, help="Minimum of seconds between two reloads."),
    click.option(
        "--grace", default=30.0, show_default=True, help="Seconds that connections may last after vipwire stops."
    ),
    click.option(
        "--leave-running",
        is_flag=True,
        help="Leave HAProxy running when vipwire stops; the next start takes it over.",
    ),
    click.option("-v", "verbosity", default=0, help="Verbosity of the log."),
)


_flags = with_flags(*COMMON_FLAGS[:3], *_OWN_FLAGS, *COMMON_FLAGS[3:])


def _import_command() -> ModuleType:
    """Import the implementation late: `--help` and completion do not need it."""
    from vipwire_l7.ingress import command  # noqa: PLC0415

    return command


@click.group(invoke_without_command=True)
@_flags
@with_flags(*PROCESS_FLAGS)
@click.option("--publish-address", multiple=True, help="Address or name for status.loadBalancer; may be repeated.")
@click.option(
    "--publish-service", default="", help="NAMESPACE/NAME of a Service whose addresses vipwire writes instead."
)
@click.option(
    "--lease",
    default="kube-system/vipwire-ingress",
    show_default=True,
    help="NAMESPACE/NAME of the Lease whose holder writes the status; empty: every replica does.",
)
@click.option(
    "--metrics-bind-address", default="127.0.0.1:10254", show_default=True, help="Metrics, /readyz and /livez."
)
@click.option(
    "--takeover",
    is_flag=True,
    help="Take over from the ingress that runs on this machine; its HAProxy keeps running.",
)
@click.pass_context
def ingress(context: click.Context, /, **given: object) -> None:
    """Serve Ingresses with HAProxy, which vipwire starts, configures and watches.

    vipwire changes hosts, paths, endpoints and certificates while HAProxy runs, and reloads HAProxy for other
    changes, without a lost connection.
    """
    if context.invoked_subcommand is not None:
        return
    _import_command().serve(given)


@ingress.command()
@_flags
@click.option("--output-dir", type=click.Path(path_type=Path), help="Write haproxy.cfg, maps and certificates there.")
def render(output_dir: Path | None, **given: object) -> None:
    """Print the configuration, for operators who run HAProxy themselves.

    With --output-dir, vipwire writes all files there, ready for `haproxy -f DIR/haproxy.cfg`. Problems go to stderr.
    """
    _import_command().render(output_dir, given)


@ingress.command()
@_flags
@click.option("--gateway-class", default="vipwire", show_default=True, help="The class of the Gateways.")
def convert(gateway_class: str, **given: object) -> None:
    """Print Gateway API objects that serve the same hosts and paths.

    Each namespace gets one Gateway, and each host of an Ingress an HTTPRoute. vipwire lists features without an
    equivalent on stderr.
    """
    _import_command().print_converted(gateway_class, given)
