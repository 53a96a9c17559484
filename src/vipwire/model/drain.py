"""An endpoint that somebody wants to get no new connections on this node: as if its weight were 0."""

from typing import NamedTuple

from vipwire.model.names import ObjectName
from vipwire.model.net import Address, format_address, format_endpoint


class Drain(NamedTuple):
    """A drained address: at one port or (None) at all, for one Service or (None) for all."""

    address: Address
    port: int | None = None
    service: ObjectName | None = None

    def covers(self, service: ObjectName, address: Address, port: int) -> bool:
        """Report whether an endpoint of a Service is drained by this."""
        return self.address == address and self.port in (None, port) and self.service in (None, service)

    def __str__(self) -> str:
        place = format_address(self.address) if self.port is None else format_endpoint(self.address, self.port)
        return place if self.service is None else f"{place} of {self.service}"
