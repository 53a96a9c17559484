"""A problem with somebody's object. A value, not an error: it is reported, and everything else goes on."""

from typing import NamedTuple

from vipwire.model.names import ObjectName


class Problem(NamedTuple):
    """One invalid or unusable part of one object.

    `kind` is the object's kind as in its manifest, `field` the path as Kubernetes writes it
    (`spec.ports[1].port`), `message` what is wrong with it and what is allowed.
    """

    kind: str
    object: ObjectName
    field: str
    message: str
    reason: str = "Rejected"
    """One word for the Event."""

    def __str__(self) -> str:
        return f"{self.kind} {self.object}: {self.field}: {self.message}"
