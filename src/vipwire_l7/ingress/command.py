"""Implements `vipwire ingress` and its subcommands, given the values of their flags."""

import asyncio
import contextlib
import ipaddress
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn, TypeAlias, TypeVar

import click
import msgspec
import yaml

from vipwire.config.sections import Logging
from vipwire.errors import ConfigError
from vipwire.file_io.files import replace_file
from vipwire.file_io.private_files import make_folder
from vipwire.kube.finding import is_label
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.net import Prefix
from vipwire.terminal.output import plain_errors, print_warning
from vipwire_l7.haproxy.layout import Layout
from vipwire_l7.haproxy.words import write_plain
from vipwire_l7.ingress.plan.planner import IngressPlanner, is_ours
from vipwire_l7.ingress.plan.to_gateway import convert_to_gateway
from vipwire_l7.ingress.served import Ingresses
from vipwire_l7.plan.destinations import DestinationSetting
from vipwire_l7.plan.limits import Most, parse_limits
from vipwire_l7.plan.plan import Setting
from vipwire_l7.run.app import ControllerInput, Options, list_once, render_once, run_ingress

Write: TypeAlias = Callable[[Sequence[tuple[str, str]]], None]
_BIND = re.compile(r"(\*|\d+\.\d+\.\d+\.\d+|\[?[0-9a-f:]+\]?)?:(\d{1,5})", re.ASCII)
_LONGEST_DOMAIN: Final = 250


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `vipwire ingress` and its subcommands, by click's names.

    Not all commands have those with a default.
    """

    run_dir: Path
    ingress_class: str
    controller: str
    watch_ingress_without_class: bool
    hosts_apart: bool
    http: str
    https: str
    manifests: tuple[Path, ...]
    kubeconfig: Path | None
    master: str
    zone: str
    accept_proxy: bool
    trust_forwarded_headers: bool
    access_log: str
    allow_external_name: bool
    allow_target_range: tuple[str, ...]
    cluster_domain: str
    resolver: tuple[str, ...]
    cookie_key_file: Path | None
    cookie_key: str
    threads: int
    max_connections: int
    namespace_limit: tuple[str, ...]
    default_certificate: Path | None
    haproxy: str = "haproxy"
    haproxy_user: str = ""
    reload_pause: float = 1.0
    grace: float = 0.0
    leave_running: bool = False
    takeover: bool = False
    verbosity: int = 0
    publish_address: tuple[str, ...] = ()
    publish_service: str = ""
    lease: str = ""
    metrics_bind_address: str = ""
    bind: str = ""
    """The address of Gateways."""


FlagsT = TypeVar("FlagsT", bound=Flags)


def serve(given: Mapping[str, object]) -> NoReturn:
    run_prepared(msgspec.convert(given, Flags), _read_flags)


def render(output_dir: Path | None, given: Mapping[str, object]) -> None:
    print_rendered(output_dir, msgspec.convert(given, Flags), _read_flags)


def _read_flags(flags: Flags) -> tuple[Options, ControllerInput]:
    options = read_options(flags)
    return options, Ingresses(options).served


def run_prepared(flags: FlagsT, prepare: Callable[[FlagsT], tuple[Options, ControllerInput]]) -> NoReturn:
    """Run the process. `prepare` makes the arguments of `run_ingress` from the flags."""
    log.configure(Logging(verbosity=flags.verbosity))
    with plain_errors():
        status = run_ingress(*prepare(flags))
    sys.exit(status)


def print_converted(gateway_class: str, given: Mapping[str, object]) -> None:
    with plain_errors():
        text, problems = asyncio.run(_convert_ingresses(read_options(msgspec.convert(given, Flags)), gateway_class))
        for problem in problems:
            print_warning(str(problem))
        click.echo(text, nl=False)


async def _convert_ingresses(options: Options, class_name: str) -> tuple[str, Sequence[str]]:
    """Write Gateway API objects for this controller's Ingresses, in YAML, and a line for each feature they lack."""
    snapshot = await list_once(options, ControllerInput(IngressPlanner(options.setting)))
    ours = [each for each in snapshot.ingresses.values() if is_ours(each, snapshot.classes, options.setting)]
    made = convert_to_gateway(ours, snapshot.services, class_name)
    text = "".join(f"---\n{yaml.safe_dump(each, sort_keys=False)}" for each in made.objects)
    return text, [str(each) for each in (*snapshot.problems, *made.problems)]


def print_rendered(
    output_dir: Path | None, flags: FlagsT, prepare: Callable[[FlagsT], tuple[Options, ControllerInput]]
) -> None:
    """Print or write the files. `prepare` makes the arguments of `render_once` from the flags."""
    with plain_errors(), _render_folder(output_dir, flags.run_dir) as (folder, write):
        files, problems = asyncio.run(render_once(*prepare(msgspec.structs.replace(flags, run_dir=folder))))
        for problem in problems:
            print_warning(str(problem))
        write(files)


@contextlib.contextmanager
def _render_folder(output_dir: Path | None, run_dir: Path) -> Iterator[tuple[Path, Write]]:
    """Yield the folder to render for, and the function that writes the files there or prints haproxy.cfg."""
    folder = (output_dir or run_dir).absolute()

    def write(files: Sequence[tuple[str, str]]) -> None:
        if output_dir is None:
            click.echo(files[0][1], nl=False)
            return
        for name, content in files:
            replace_file(folder / name, content.encode(), mode=0o600)

    make_folder(folder, "--run-dir" if output_dir is None else "--output-dir")
    try:
        yield folder, write
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from error


def read_options(flags: Flags) -> Options:
    """Build the `Options` of a command line; raise ConfigError for invalid values."""
    folder, cookie_key = flags.run_dir.absolute(), _read_cookie_key(flags)
    if flags.access_log:
        _check_flag("access_log", write_plain, flags.access_log)
    _check_flag("run_dir", write_plain, str(folder))
    if flags.publish_service and flags.publish_address:
        raise ConfigError("--publish-service and --publish-address exclude each other: give one of them")
    layout = Layout(
        str(folder),
        f"{folder}/haproxy.sock",
        http=_check_bind("--http", flags.http),
        https=_check_bind("--https", flags.https),
        accept_proxy=flags.accept_proxy,
        trust_forwarded=flags.trust_forwarded_headers,
        access_log=flags.access_log,
        cookie_key=cookie_key,
        threads=flags.threads,
        connections=flags.max_connections,
    )
    if not layout.http and not layout.https and not flags.bind:
        raise ConfigError("--http and --https are both empty: there is nothing to serve")
    without_class = flags.watch_ingress_without_class
    ours = (flags.ingress_class, flags.controller, without_class, flags.zone, flags.hosts_apart)
    return Options(
        folder,
        layout,
        Setting(*ours, limits=read_limits(flags)),
        haproxy_user=flags.haproxy_user,
        manifests=flags.manifests,
        kubeconfig=flags.kubeconfig,
        master=flags.master,
        haproxy=flags.haproxy,
        default_certificate=flags.default_certificate,
        addresses=flags.publish_address,
        metrics=flags.metrics_bind_address,
        pause=flags.reload_pause,
        grace=flags.grace,
        leave_running=flags.leave_running,
        takeover=flags.takeover,
        publish_service=_read_object_name("--publish-service", flags.publish_service),
        lease=_read_object_name("--lease", flags.lease),
        destinations=_read_destinations(flags),
        resolvers=tuple(map(_read_resolver, flags.resolver)),
    )


def _read_resolver(text: str) -> tuple[str, int]:
    host, _, port = _check_bind("--resolver", text).rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError as error:
        raise ConfigError(f"--resolver: {error}") from None


def _read_destinations(flags: Flags) -> DestinationSetting:
    try:
        ranges = tuple(map(Prefix.parse, flags.allow_target_range))
    except ValueError as error:
        raise ConfigError(f"--allow-target-range: {error}") from None
    domain = flags.cluster_domain.lower().strip(".")
    if len(domain) > _LONGEST_DOMAIN or not all(map(is_label, domain.split("."))):
        raise ConfigError(f"--cluster-domain: {domain[:80]!r} is no name (allowed: a name such as cluster.local)")
    return DestinationSetting(flags.allow_external_name, ranges, tuple(dict.fromkeys((domain, "cluster.local"))))


def read_limits(flags: Flags) -> Most:
    """Read `--namespace-limit`; raise ConfigError for an invalid value."""
    try:
        return parse_limits(flags.namespace_limit)
    except ValueError as error:
        raise ConfigError(f"--namespace-limit: {error}") from None


def _read_object_name(flag: str, text: str) -> ObjectName | None:
    if not text:
        return None
    namespace, _, name = text.partition("/")
    if not is_label(namespace) or not is_label(name):
        raise ConfigError(f"{flag}: {text!r} is no NAMESPACE/NAME, such as kube-system/vipwire-ingress")
    return ObjectName(namespace, name)


def _read_cookie_key(flags: Flags) -> str:
    path = flags.cookie_key_file
    try:
        key = flags.cookie_key if path is None else path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--cookie-key-file {path}: cannot be read: {error}") from error
    if not key:
        raise ConfigError(f"--cookie-key-file {path}: is empty" if path else "VIPWIRE_COOKIE_KEY: is empty")
    _check_flag("cookie_key_file" if path else "cookie_key", write_plain, key)
    return key


def _check_flag(flag: str, check: Callable[[str], object], text: str) -> None:
    try:
        check(text)
    except ValueError as error:
        raise ConfigError(f"--{flag.replace('_', '-')}: {error} (allowed: letters, digits, _.:/@+,=*-)") from error


def _check_bind(flag: str, text: str) -> str:
    if text and (not (match := _BIND.fullmatch(text)) or not 0 < int(match[2]) < 65536):
        raise ConfigError(f"{flag}: {text!r} is no address (allowed: *:80, 192.0.2.1:80, [2001:db8::1]:80)")
    return text
