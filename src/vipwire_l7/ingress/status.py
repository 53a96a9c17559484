"""`status.loadBalancer` of our Ingresses: where clients reach them, written back when it is another."""

import ipaddress
from collections.abc import Callable, Collection, Iterable
from functools import partial

from vipwire.kube.access.access import Access
from vipwire.kube.objects import FencedObjects, Object, path_of
from vipwire.kube.write_loop import Pauses, WriteLoop
from vipwire.model.names import ObjectName
from vipwire_l7.watch.objects import IngressKind
from vipwire_l7.watch.snapshot import Snapshot

_NETWORKING = "/apis/networking.k8s.io/v1"
_KINDS = (IngressKind.INGRESS, IngressKind.SERVICE)
_PAUSES = Pauses(refused=30.0, written=5.0)


class StatusWriter:
    """Writes the addresses into the status of the Ingresses that are ours."""

    def __init__(
        self,
        access: Access,
        addresses: Callable[[], tuple[str, ...] | None],
        snapshot: Snapshot,
        leading: Callable[[], bool],
    ) -> None:
        """`addresses` gives what is to be written, None while no Service tells; `leading` whether we are to."""
        self._addresses, self._snapshot = addresses, snapshot
        self._loop = WriteLoop[ObjectName](
            access, "vipwire-ingress", leading, lambda: snapshot.events(_KINDS), _PAUSES
        )

    async def run(self, ours: Callable[[], Collection[ObjectName]]) -> None:
        """Write until cancelled; `ours` names the Ingresses that are served."""
        await self._loop.run(ours, self._keep_all)

    async def _keep_all(self, objects: FencedObjects, names: Iterable[ObjectName]) -> None:
        wanted = self._addresses()
        for name in names if wanted is not None else ():
            ingress = self._snapshot.ingresses.get(name)
            if wanted is not None and ingress is not None and ingress.addresses != wanted:
                path, patch = path_of(_NETWORKING, "ingresses", *name, "status"), status_patch(wanted)
                send = partial(objects.merge, path, patch)
                await self._loop.write(name, send, "cannot write the status of an Ingress", object=name)


def status_patch(addresses: Iterable[str]) -> Object:
    """Build the merge patch of an Ingress's status: addresses as `ip`, names as `hostname`."""
    entries = [{"ip" if _is_address(text) else "hostname": text} for text in addresses]
    return {"status": {"loadBalancer": {"ingress": entries}}}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
