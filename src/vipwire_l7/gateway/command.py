"""Implements `vipwire gateway` and `vipwire gateway render`, given the values of their flags."""

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NoReturn

import msgspec

from vipwire.errors import ConfigError
from vipwire.model.names import ObjectName
from vipwire.model.text import port_number
from vipwire_l7.gateway.plan.address_pool import Network
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.run.app import GatewayParts
from vipwire_l7.ingress.command import Flags, print_rendered, read_limits, read_options, run_prepared
from vipwire_l7.ingress.served import Ingresses
from vipwire_l7.plan.plan import CONTROLLER
from vipwire_l7.run.app import ControllerInput, Options
from vipwire_l7.run.process import has_system_authorities


class GatewayFlags(Flags, frozen=True, kw_only=True):
    """The flags of `vipwire gateway` and its subcommand, by click's names."""

    ingress: bool
    bind: str
    address: tuple[str, ...]
    address_pool: tuple[str, ...]
    services: str | None
    service_ports: str
    udp_timeout: float = 60.0


def serve(given: Mapping[str, object]) -> NoReturn:
    run_prepared(msgspec.convert(given, GatewayFlags), _read_flags)


def render(output_dir: Path | None, given: Mapping[str, object]) -> None:
    print_rendered(output_dir, msgspec.convert(given, GatewayFlags), _read_flags)


def _read_flags(flags: GatewayFlags) -> tuple[Options, ControllerInput]:
    options = _read_options(flags)
    return options, _build_parts(flags, options).served


def _read_options(flags: GatewayFlags) -> Options:
    none = {} if flags.ingress else {"http": "", "https": ""}
    made = read_options(msgspec.structs.replace(flags, controller=CONTROLLER, **none))
    return replace(made, command="vipwire gateway")


def _build_parts(flags: GatewayFlags, options: Options) -> GatewayParts:
    for flag, texts in (("--bind", (flags.bind,)), ("--address", flags.address)):
        for text in texts:
            _check_address(flag, text)
    published = flags.publish_address
    bind = flags.bind
    reached = published or ((bind.strip("[]"),) if bind not in ("*", "[::]", "0.0.0.0") else ())  # noqa: S104
    usable = frozenset(flags.address)
    pool = tuple(map(_read_network, flags.address_pool))
    services = _read_services(flags, pool)
    reserved = frozenset(map(_show_bind, filter(None, (options.layout.http, options.layout.https))))
    first = (flags.controller, flags.zone, bind, reached, usable, pool, reserved)
    authorities = cache(lambda: has_system_authorities(options.haproxy))
    setting = GatewaySetting(*first, *services, authorities, read_limits(flags))
    ingresses = Ingresses(options).served if flags.ingress else None
    return GatewayParts(setting, flags.udp_timeout, None if reached else _find_source_address, ingresses)


def _read_services(flags: GatewayFlags, pool: tuple[Network, ...]) -> tuple[ObjectName | None, range]:
    first, last = (port_number(each) for each in flags.service_ports.partition("-")[::2])
    if first is None or last is None or first > last:
        raise ConfigError(f"--service-ports: {flags.service_ports!r} is no range (such as 20000-21999)")
    numbers = range(first, last + 1)
    if not flags.services:
        return None, numbers
    namespace, _, name = flags.services.partition("/")
    if not namespace or not name:
        raise ConfigError(f"--services: {flags.services!r} is not NAMESPACE/NAME")
    if pool:
        raise ConfigError(
            "--services and --address-pool exclude each other: a Gateway's address comes from one of them"
        )
    if flags.manifests:
        raise ConfigError("--services needs an API server: vipwire cannot create Services in --manifests")
    return ObjectName(namespace, name), numbers


def _show_bind(bind: str) -> str:
    host, _, port = bind.rpartition(":")
    return f"{'*' if host in ('', '*', '[::]', '::', '0.0.0.0') else host}:{port}"  # noqa: S104


def _read_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigError(f"--address-pool: {error} (such as 192.0.2.16/28)") from None


def _check_address(flag: str, text: str) -> None:
    try:
        if text != "*":
            ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise ConfigError(f"{flag}: {text!r} is no address (such as 192.0.2.1 or [2001:db8::1])") from None


def _find_source_address() -> tuple[str, ...]:
    """Return this machine's source address for other machines: most clients reach it there."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses a source address
        except OSError:
            return ("127.0.0.1",)
        return (str(asking.getsockname()[0]),)
