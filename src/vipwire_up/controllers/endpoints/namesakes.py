"""The Endpoints object of a Service that is deleted goes with it, in the same transaction: an admission hook.

Whoever made it: the API server of Kubernetes does so, too (pkg/registry/core/service/storage, afterDelete). Slices go
by the controller, which finds no Service for them, and by garbage collection.
"""

from collections.abc import Callable
from datetime import datetime

from vipwire_up.api.admission import AdmissionRequest, Admitted, Operation
from vipwire_up.api.kinds.endpoints import ENDPOINTS
from vipwire_up.api.kinds.service import SERVICES
from vipwire_up.api.metadata import mark_deleted
from vipwire_up.api.objects.object import decoded, encoder, key_of
from vipwire_up.store.record import Write
from vipwire_up.store.store import Store


class NamesakeDeletion:
    """The hook. `clock` tells the time, for Endpoints with finalizers: they are marked, and go after these."""

    def __init__(self, store: Store, clock: Callable[[], datetime]) -> None:
        self._store, self._clock = store, clock

    def admit(self, attempt: AdmissionRequest) -> Admitted | None:
        """Delete the Endpoints of a Service's name with it."""
        if attempt.resource is not SERVICES or attempt.operation is not Operation.DELETE:
            return None
        record = self._store.head(key_of(ENDPOINTS, attempt.namespace, attempt.name))
        if record is None:
            return None
        value = decoded(record)
        stays = mark_deleted(ENDPOINTS, value, self._clock(), grace=None, propagation="")
        return Admitted((Write(record.key, encoder(value), record.revision, deletes=not stays),))
