"""Validates a container's probes (pkg/apis/core/validation, validateProbe and validateHandler). Pure."""

from collections.abc import Iterator
from typing import Any, Final

from vipwire_up.api.objects import names
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.errors import Cause, forbidden, invalid, required
from vipwire_up.api.objects.resource import Object

_HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc")
_MOST_PORT: Final = 65535


def check_probes(container: Object, path: str) -> Iterator[Cause]:
    """Find what is wrong in the probes of a container."""
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if container.get(name) is not None:
            yield from _check_probe(container[name], name, f"{path}.{name}")


def _check_probe(probe: Object, name: str, path: str) -> Iterator[Cause]:
    yield from _check_handler(probe, path)
    if name != "readinessProbe" and probe.get("successThreshold", 1) != 1:
        yield invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")
    grace = probe.get("terminationGracePeriodSeconds")
    if grace is not None and name == "readinessProbe":
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
    elif grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")


def _check_handler(probe: Object, path: str) -> Iterator[Cause]:
    given = [name for name in _HANDLERS if probe.get(name) is not None]
    if not given:
        yield required(path, "must specify a handler type")
    for name in given[1:]:
        yield forbidden(f"{path}.{name}", "may not specify more than 1 handler type")
    for name in given[:1]:
        where = f"{path}.{name}"
        if name == "exec" and not at(probe, name, "command"):
            yield required(f"{where}.command")
        if name in ("httpGet", "tcpSocket"):
            yield from check_port(probe[name].get("port"), f"{where}.port")


def check_port(port: Any, path: str) -> Iterator[Cause]:
    """Find what is wrong in a port that is a number or the name of one."""
    if isinstance(port, int) and not 0 < port <= _MOST_PORT:
        yield invalid(path, port, "must be between 1 and 65535, inclusive")
    elif isinstance(port, str) and (problem := names.port_name(port)):
        yield invalid(path, port, problem)
