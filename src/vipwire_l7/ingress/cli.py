"""`vipwire ingress`, and `vipwire ingress render`."""

import asyncio
import contextlib
import ipaddress
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import click

from vipwire.errors import ConfigError
from vipwire.process.command_flags import with_flags
from vipwire.process.terminal import plain_errors, warn

Command = TypeVar("Command", bound=Callable[..., Any])
Write: TypeAlias = Callable[[Sequence[tuple[str, str]]], None]
_BIND = re.compile(r"(\*|\d+\.\d+\.\d+\.\d+|\[?[0-9a-f:]+\]?)?:(\d{1,5})", re.ASCII)
_LONGEST_DOMAIN: Final = 250
INGRESS_FLAGS: Final = (
    click.option("--ingress-class", default="vipwire", show_default=True, help="The class that is ours."),
    click.option("--watch-ingress-without-class", is_flag=True, help="Serve Ingresses that name no class, too."),
    click.option("--hosts-apart", is_flag=True, help="A host is one namespace's, that of its oldest Ingress."),
    click.option("--http", default="*:80", show_default=True, help="Where to listen for HTTP; empty for nowhere."),
    click.option("--https", default="*:443", show_default=True, help="Where to listen for HTTPS; empty for nowhere."),
)
_OWN_FLAGS: Final = (
    INGRESS_FLAGS[0],
    click.option(
        "--controller", default="vipwire.io/ingress", show_default=True, help="Our IngressClasses' controller."
    ),
    *INGRESS_FLAGS[1:],
    click.option(
        "--run-dir", type=click.Path(path_type=Path), default=Path("/run/vipwire-ingress"), show_default=True
    ),
)
COMMON_FLAGS: Final = (
    click.option("--manifests", multiple=True, type=click.Path(path_type=Path), help="Files or folders of objects."),
    click.option("--kubeconfig", type=click.Path(path_type=Path), help="How to reach the API server."),
    click.option("--master", default="", help="URL of the API server."),
    click.option("--zone", default="", envvar="VIPWIRE_ZONE", help="Where we are, for endpoints' hints of zones."),
    click.option("--accept-proxy", is_flag=True, help="Clients come with a PROXY protocol header."),
    click.option(
        "--trust-forwarded-headers", is_flag=True, help="Clients are balancers whose X-Forwarded-* headers are true."
    ),
    click.option("--access-log", default="", help="Log requests as JSON: to stdout, or to ADDRESS:PORT of a syslog."),
    click.option("--allow-external-name", is_flag=True, help="Follow the names of ExternalName Services."),
    click.option(
        "--allow-target-range",
        multiple=True,
        help="CIDR where backends may be though it is loopback, this node's or the API server's; repeatable.",
    ),
    click.option(
        "--cluster-domain",
        default="cluster.local",
        show_default=True,
        help="The zone of the Services' names, which ExternalName does not lead to in other namespaces.",
    ),
    click.option("--resolver", multiple=True, help="DNS server (ADDRESS:PORT) for ExternalName; may be repeated."),
    click.option("--cookie-key", default="vipwire", envvar="VIPWIRE_COOKIE_KEY", help="Secret of affinity cookies."),
    click.option("--threads", default=0, help="Threads of HAProxy; 0 is one for each CPU."),
    click.option("--max-connections", default=0, help="Most connections at once; 0 leaves it to HAProxy."),
    click.option("--default-certificate", type=click.Path(path_type=Path), help="PEM file with certificate and key."),
)
PROCESS_FLAGS: Final = (
    click.option("--haproxy", default="haproxy", show_default=True, help="The program."),
    click.option(
        "--haproxy-user",
        default="",
        help="Whom HAProxy's workers run as if we are root, in an empty folder: haproxy or nobody; - for root.",
    ),
    click.option("--reload-pause", default=1.0, show_default=True, help="Least seconds between two reloads."),
    click.option("--grace", default=30.0, show_default=True, help="Seconds that connections have when it ends."),
    click.option(
        "--leave-running", is_flag=True, help="Leave HAProxy running at the end; the next start takes it over."
    ),
    click.option("-v", "verbosity", default=0, help="Verbosity of the log."),
)


_flags = with_flags(*COMMON_FLAGS[:3], *_OWN_FLAGS, *COMMON_FLAGS[3:])


@click.group(invoke_without_command=True)
@_flags
@with_flags(*PROCESS_FLAGS)
@click.option("--publish-address", multiple=True, help="Address or name for status.loadBalancer; may be repeated.")
@click.option(
    "--publish-service", default="", help="NAMESPACE/NAME of a Service whose addresses are written instead."
)
@click.option(
    "--lease",
    default="kube-system/vipwire-ingress",
    show_default=True,
    help="NAMESPACE/NAME of the Lease whose holder writes the status; empty: every replica does.",
)
@click.option("--metrics-bind-address", default="127.0.0.1:10254", show_default=True, help="Metrics and /healthz.")
@click.option("--takeover", is_flag=True, help="Take the place of the ingress that runs here; its HAProxy goes on.")
@click.pass_context
def ingress(context: click.Context, /, **given: Any) -> None:
    """Serve Ingresses with HAProxy, which is started, configured and watched.

    Hosts, paths, endpoints and certificates are changed while it runs; HAProxy is reloaded, without losing a
    connection, only for what it cannot take at run time.
    """
    if context.invoked_subcommand is not None:
        return
    from vipwire.config.sections import Logging  # noqa: PLC0415
    from vipwire.process import log  # noqa: PLC0415  # not for --help
    from vipwire_l7.ingress.run.app import run_ingress  # noqa: PLC0415

    log.configure(Logging(verbosity=given["verbosity"]))
    with plain_errors():
        status = run_ingress(options_of(given))
    sys.exit(status)


@ingress.command()
@_flags
@click.option("--output-dir", type=click.Path(path_type=Path), help="Write haproxy.cfg, maps and certificates there.")
def render(output_dir: Path | None, **given: Any) -> None:
    """Print the configuration for people who run HAProxy themselves.

    With --output-dir all files are written there, ready for `haproxy -f DIR/haproxy.cfg`. Problems go to stderr.
    """
    print_rendered(output_dir, given, lambda placed: (options_of(placed),))


@ingress.command()
@_flags
@click.option("--gateway-class", default="vipwire", show_default=True, help="The class of the Gateways.")
def convert(gateway_class: str, **given: Any) -> None:
    """Print Gateway API objects that serve what our Ingresses serve.

    One Gateway for each namespace, and an HTTPRoute for each host of an Ingress. What has no equivalent is told on
    stderr.
    """
    from vipwire_l7.ingress.run.app import convert_once  # noqa: PLC0415  # not for --help

    with plain_errors():
        text, problems = asyncio.run(convert_once(options_of(given), gateway_class))
        for problem in problems:
            warn(str(problem))
        click.echo(text, nl=False)


def print_rendered(
    output_dir: Path | None, given: dict[str, Any], prepared: Callable[[dict[str, Any]], tuple[Any, ...]]
) -> None:
    """Render once, and print or write the files. `prepared` makes the arguments of `render_once` from the flags."""
    from vipwire_l7.ingress.run.app import render_once  # noqa: PLC0415  # not for --help

    with plain_errors(), _rendered(output_dir, given["run_dir"]) as (folder, write):
        files, problems = asyncio.run(render_once(*prepared({**given, "run_dir": folder})))
        for problem in problems:
            warn(str(problem))
        write(files)


@contextlib.contextmanager
def _rendered(output_dir: Path | None, run_dir: Path) -> Iterator[tuple[Path, Write]]:
    """Give the folder to render for, and what writes the files there, or prints the first of them."""
    folder = (output_dir or run_dir).absolute()

    def write(files: Sequence[tuple[str, str]]) -> None:
        if output_dir is None:
            click.echo(files[0][1], nl=False)
            return
        for name, content in files:
            target = folder / name
            target.touch(mode=0o600)
            target.write_text(content, encoding="utf-8", newline="")

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield folder, write
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


def options_of(given: dict[str, Any]) -> Any:
    """Build the `Options` of a command line; raise ConfigError for invalid values."""
    from vipwire_l7.ingress.haproxy.layout import Layout  # noqa: PLC0415
    from vipwire_l7.ingress.haproxy.words import plain  # noqa: PLC0415
    from vipwire_l7.ingress.run.app import Options  # noqa: PLC0415

    folder = given["run_dir"].absolute()
    for flag in ("cookie_key", "access_log"):
        if given[flag]:
            _checked(flag, plain, given[flag])
    _checked("run_dir", plain, str(folder))
    if given.get("publish_service") and given.get("publish_address"):
        raise ConfigError("--publish-service and --publish-address: only one of them can be written")
    layout = Layout(
        str(folder),
        f"{folder}/haproxy.sock",
        http=_bind("--http", given["http"]),
        https=_bind("--https", given["https"]),
        accept_proxy=given["accept_proxy"],
        trust_forwarded=given["trust_forwarded_headers"],
        access_log=given["access_log"],
        cookie_key=given["cookie_key"],
        threads=given["threads"],
        connections=given["max_connections"],
    )
    if not layout.http and not layout.https and "bind" not in given:
        raise ConfigError("--http and --https are both empty: there is nothing to serve")
    return Options(
        folder,
        layout,
        setting_of(given),
        haproxy_user=given.get("haproxy_user", ""),
        manifests=given["manifests"],
        kubeconfig=given["kubeconfig"],
        master=given["master"],
        haproxy=given.get("haproxy", "haproxy"),
        default_certificate=given["default_certificate"],
        addresses=given.get("publish_address", ()),
        metrics=given.get("metrics_bind_address", ""),
        pause=given.get("reload_pause", 1.0),
        grace=given.get("grace", 0.0),
        leave_running=given.get("leave_running", False),
        takeover=given.get("takeover", False),
        publish_service=_object_name("--publish-service", given.get("publish_service", "")),
        lease=_object_name("--lease", given.get("lease", "")),
        destinations=_destinations(given),
        resolvers=tuple(map(_resolver, given["resolver"])),
    )


def _resolver(text: str) -> tuple[str, int]:
    host, _, port = _bind("--resolver", text).rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError as error:
        raise ConfigError(f"--resolver: {error}") from None


def _destinations(given: dict[str, Any]) -> Any:
    from vipwire.kube.finding import is_label  # noqa: PLC0415
    from vipwire.model.net import Prefix  # noqa: PLC0415
    from vipwire_l7.ingress.plan.destinations import DestinationSetting  # noqa: PLC0415

    try:
        ranges = tuple(map(Prefix.parse, given["allow_target_range"]))
    except ValueError as error:
        raise ConfigError(f"--allow-target-range: {error}") from None
    domain = given["cluster_domain"].lower().strip(".")
    if len(domain) > _LONGEST_DOMAIN or not all(map(is_label, domain.split("."))):
        raise ConfigError(f"--cluster-domain: {domain[:80]!r} is no name (allowed: a name such as cluster.local)")
    return DestinationSetting(given["allow_external_name"], ranges, tuple(dict.fromkeys((domain, "cluster.local"))))


def setting_of(given: dict[str, Any]) -> Any:
    """Build the `Setting` of a command line."""
    from vipwire_l7.ingress.plan.planner import Setting  # noqa: PLC0415  # not for --help

    names = ("ingress_class", "controller", "watch_ingress_without_class", "zone", "hosts_apart")
    return Setting(*(given[name] for name in names))


def _object_name(flag: str, text: str) -> Any:
    from vipwire.kube.finding import is_label  # noqa: PLC0415  # not for --help
    from vipwire.model.names import ObjectName  # noqa: PLC0415

    if not text:
        return None
    namespace, _, name = text.partition("/")
    if not is_label(namespace) or not is_label(name):
        raise ConfigError(f"{flag}: {text!r} is no NAMESPACE/NAME, such as kube-system/vipwire-ingress")
    return ObjectName(namespace, name)


def _checked(flag: str, check: Any, text: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise ConfigError(f"--{flag.replace('_', '-')}: {error} (allowed: letters, digits, _.:/@+,=*-)") from error


def _bind(flag: str, text: str) -> str:
    if text and (not (match := _BIND.fullmatch(text)) or not 0 < int(match[2]) < 65536):
        raise ConfigError(f"{flag}: {text!r} is no address (allowed: *:80, 192.0.2.1:80, [2001:db8::1]:80)")
    return text
