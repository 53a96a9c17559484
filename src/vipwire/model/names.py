"""Names of Kubernetes objects and Service ports."""

from typing import Final, NamedTuple

from vipwire.model.net import Protocol


class ObjectName(NamedTuple):
    """A namespaced object's name. `namespace` is "" for cluster-scoped objects."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


KUBERNETES: Final = ObjectName("default", "kubernetes")
"""The API server's own Service."""


class ServicePortName(NamedTuple):
    """One port of one Service. Prints as in kube-proxy: `ns/name:port`."""

    service: ObjectName
    port: str
    protocol: Protocol

    def __str__(self) -> str:
        return f"{self.service}:{self.port}" if self.port else str(self.service)
