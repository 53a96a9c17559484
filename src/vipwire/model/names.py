"""The names by which Kubernetes and operators call things."""

from typing import Final, NamedTuple

from vipwire.model.net import Protocol


class ObjectName(NamedTuple):
    """A namespaced object's name. `namespace` is empty for objects of the whole cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


KUBERNETES: Final = ObjectName("default", "kubernetes")
"""The Service that the API server makes for itself."""


class ServicePortName(NamedTuple):
    """One port of one Service: what kube-proxy balances. Prints as kube-proxy prints it: `ns/name:port`."""

    service: ObjectName
    port: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.service}:{self.port}" if self.port else str(self.service)
