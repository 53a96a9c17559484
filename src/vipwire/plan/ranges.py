"""`vipwire.io/port-range`: serves a Service's port at a whole range of ports.

    vipwire.io/port-range: 10000-20000                    the Service's only port
    vipwire.io/port-range: rtp=10000-20000,ctl=5000-5009  several, by name

A range is served at the port's addresses, in addition to the port itself, which lies in it; a node port stays a
single port. If the endpoint has the Service port's own number, the client's port is kept: 10123 arrives at 10123.
With another `targetPort`, the whole range arrives there.

Affinity (it remembers by port; the algorithm source-hash keeps clients without a memory) and another port of the
Service within the range are Problems: the port is then served without the range.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from vipwire.model.problem import Problem
from vipwire.model.service import Service, ServicePort
from vipwire.plan.annotations import PREFIX, Wishes, field_of

FIELD = field_of(f"{PREFIX}port-range")


class PortRange(NamedTuple):
    """Ports from `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, port: object) -> bool:
        return isinstance(port, int) and self.first <= port <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


class Ranges(NamedTuple):
    """The ranges of a Service by port, and problems of the omitted ones."""

    of: Mapping[ServicePort, PortRange]
    problems: tuple[Problem, ...] = ()


NONE = Ranges({})


def find_ranges(service: Service, wishes: Wishes, *, served: bool) -> Ranges:
    """Return the ranges of a Service; `served`: the mode supports ranges; a mode without them reports so itself."""
    if not wishes.port_ranges or not served:
        return NONE
    found: dict[ServicePort, PortRange] = {}
    problems: list[Problem] = []
    for name, (first, last) in wishes.port_ranges:
        try:
            port = _find_port(service, name)
            _check_range(service, port, PortRange(first, last))
            found[port] = PortRange(first, last)
        except ValueError as error:
            problems.append(Problem("Service", service.name, FIELD, str(error)))
    return Ranges(found, tuple(problems))


def _find_port(service: Service, name: str) -> ServicePort:
    if not name:
        if len(service.ports) > 1:
            raise ValueError("the Service has several ports: write NAME=FIRST-LAST for those that have a range")
        return service.ports[0]
    for port in service.ports:
        if port.name == name:
            return port
    names = ", ".join(port.name for port in service.ports if port.name)
    raise ValueError(f"the Service has no port {name!r}; its ports: {names or 'one without a name'}")


def _check_range(service: Service, port: ServicePort, found: PortRange) -> None:
    if port.port not in found:
        raise ValueError(f"{found} must contain the port {port.port} of the Service")
    if service.affinity_seconds is not None:
        raise ValueError(f"{found}: a range cannot have sessionAffinity: ClientIP; use the algorithm source-hash")
    for other in _list_other_ports(service, port):
        if other.port in found:
            raise ValueError(
                f"{found} contains {other.port}, another port of the Service: only {port.port} is served"
            )


def _list_other_ports(service: Service, port: ServicePort) -> Iterator[ServicePort]:
    return (other for other in service.ports if other is not port and other.protocol is port.protocol)
