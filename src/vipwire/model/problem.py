"""A problem with an object. A value, not an error: vipwire reports it and continues with the rest."""

from typing import NamedTuple

from vipwire.model.names import ObjectName


class Problem(NamedTuple):
    """One invalid or unusable part of an object.

    `kind` is the object's kind as in its manifest, `field` the path as Kubernetes writes it (`spec.ports[1].port`),
    `message` the mistake and the allowed values.
    """

    kind: str
    object: ObjectName
    field: str
    message: str
    reason: str = "Rejected"
    """The Event's reason."""

    def __str__(self) -> str:
        return f"{self.kind} {self.object}: {self.field}: {self.message}"
