"""Health checks of LoadBalancer Services with `externalTrafficPolicy: Local`: what each port answers.

A cloud's load balancer asks every node on the Service's healthCheckNodePort whether it has endpoints of its own. Only
ready local endpoints count; terminating ones do not, so that a draining node leaves the load balancer first. A proxy
that is not healthy answers 503 whatever endpoints there are. Source: KEP-1669 and kube-proxy's healthcheck package;
the body's layout, tabs and all, is kube-proxy's.
"""

import json
from collections.abc import Mapping
from typing import Final

from vipwire.model.names import ObjectName
from vipwire.model.value import Value
from vipwire.proxy.serve.health import Answer

WEIGHT_HEADER: Final = "X-Load-Balancing-Endpoint-Weight"
"""Tells a load balancer how many endpoints are behind this node, for weighted balancing."""


class ServiceHealthCheck(Value, frozen=True):
    """One Service with a healthCheckNodePort and the number of its ready endpoints on this node."""

    service: ObjectName
    local_endpoints: int

    def answer(self, *, proxy_healthy: bool) -> Answer:
        """Answer any request on the Service's port."""
        body = {
            "service": {"namespace": self.service.namespace, "name": self.service.name},
            "localEndpoints": self.local_endpoints,
            "serviceProxyHealthy": proxy_healthy,
        }
        headers = {
            "Content-Type": "application/json",
            "X-Content-Type-Options": "nosniff",
            WEIGHT_HEADER: str(self.local_endpoints),
        }
        status = 200 if self.local_endpoints and proxy_healthy else 503
        return Answer(status, json.dumps(body, indent="\t"), headers)


class PortChanges(Value, frozen=True):
    """The ports to close and to open, so that those in `desired` are served."""

    close: tuple[int, ...]
    open: tuple[int, ...]


def port_changes(listening: Mapping[int, ObjectName], desired: Mapping[int, ServiceHealthCheck]) -> PortChanges:
    """Compare the ports that are served, and for whom, with those that should be.

    A port that passes from one Service to another is closed and opened, as a check of the old one must not be
    answered for the new one on a kept-alive connection.
    """
    gone = {port for port, name in listening.items() if port not in desired or desired[port].service != name}
    missing = {port for port in desired if port not in listening or port in gone}
    return PortChanges(tuple(sorted(gone)), tuple(sorted(missing)))
