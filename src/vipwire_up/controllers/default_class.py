"""Writes the default IngressClass into Ingresses that name none: an admission hook, as one of Kubernetes.

A class is a default by the annotation `ingressclass.kubernetes.io/is-default-class: "true"`. Of several the newest
one is taken. Ingresses that are there already stay as they are.
"""

from typing import Final

from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.kinds.ingress import CLASS, INGRESS_CLASSES, INGRESSES
from vipwire_up.api.objects.object import at, readable
from vipwire_up.store.store import Store

_IS_DEFAULT: Final = "ingressclass.kubernetes.io/is-default-class"


class DefaultIngressClass:
    """The hook. Asks the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Name the default class in a new Ingress that names none."""
        new = attempt.new
        if attempt.resource is not INGRESSES or attempt.operation is not Operation.CREATE or new is None:
            return None
        named = at(new, "spec", "ingressClassName") is not None or CLASS in (at(new, "metadata", "annotations") or {})
        if not named and (name := self._name()):
            new.setdefault("spec", {})["ingressClassName"] = name
        return None

    def _name(self) -> str:
        found = [(record.key.name, readable(record)) for record in self._store.scan(INGRESS_CLASSES.id)]
        marked = [
            (str(value["metadata"].get("creationTimestamp") or ""), name)
            for name, value in found
            if at(value, "metadata", "annotations", _IS_DEFAULT) == "true"
        ]
        newest = max((time for time, _ in marked), default="")
        return min((name for time, name in marked if time == newest), default="")
