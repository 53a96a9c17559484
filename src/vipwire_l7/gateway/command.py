"""Implements `vipwire gateway` and `vipwire gateway render`, given the values of their flags."""

import ipaddress
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from vipwire.config.sections import Logging
from vipwire.errors import ConfigError
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.text import port_number
from vipwire.terminal.output import plain_errors
from vipwire_l7.gateway.plan.kinds.objects import GatewaySetting
from vipwire_l7.gateway.run.app import GatewayParts
from vipwire_l7.ingress.command import limits_from, options_of, print_rendered
from vipwire_l7.ingress.served import Ingresses
from vipwire_l7.plan.planner import CONTROLLER
from vipwire_l7.run.app import Options, Served, run_ingress
from vipwire_l7.run.system_authorities import has_system_authorities


def serve(given: dict[str, Any]) -> NoReturn:
    log.configure(Logging(verbosity=given["verbosity"]))
    with plain_errors():
        parts = _parts(given)
        status = run_ingress(_options(given), lambda: parts.served)
    sys.exit(status)


def render(output_dir: Path | None, given: dict[str, Any]) -> None:
    def prepared(placed: dict[str, Any]) -> tuple[Options, Served]:
        parts = _parts(placed)
        return _options(placed), parts.served

    print_rendered(output_dir, given, prepared)


def _options(given: dict[str, Any]) -> Options:
    none = {} if given["ingress"] else {"http": "", "https": ""}
    return options_of({**given, **none, "controller": CONTROLLER})


def _parts(given: dict[str, Any]) -> GatewayParts:
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
    setting = GatewaySetting(*first, *services, authorities, limits_from(given))
    ingresses = Ingresses(options).served if given["ingress"] else None
    return GatewayParts(setting, given.get("udp_timeout", 60.0), None if reached else _own_address, ingresses)


def _service(given: dict[str, Any], pool: tuple[Any, ...]) -> tuple[ObjectName | None, range]:
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


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
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


def _own_address() -> tuple[str, ...]:
    """Return this machine's source address for other machines: most clients reach it there."""
    with socket.socket(type=socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: the kernel only chooses a source address
        except OSError:
            return ("127.0.0.1",)
        return (str(asking.getsockname()[0]),)
