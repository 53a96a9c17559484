"""`status.loadBalancer` of our Ingresses: where clients reach them, written back when it is another."""

import ipaddress
from collections.abc import Callable, Collection, Iterable

from vipwire.kube.access.access import Access
from vipwire.kube.errors import REQUEST_ERRORS
from vipwire.kube.objects import FencedObjects, Object, path_of
from vipwire.model.names import ObjectName
from vipwire.process import log
from vipwire_l7.ingress.run.write_loop import WriteLoop
from vipwire_l7.ingress.watch.objects import IngressKind
from vipwire_l7.ingress.watch.snapshot import Snapshot

_NETWORKING = "/apis/networking.k8s.io/v1"
_AGAIN = 5.0
"""Seconds after a write before the same Ingress is written again: our watch may not have told of it yet."""
_LATER = 30.0
"""Seconds after which a write that was refused is tried again."""


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
        self._access, self._addresses, self._snapshot, self._leading = access, addresses, snapshot, leading
        self._loop = WriteLoop[ObjectName](snapshot, (IngressKind.INGRESS, IngressKind.SERVICE), leading)

    async def run(self, ours: Callable[[], Collection[ObjectName]]) -> None:
        """Write until cancelled; `ours` names the Ingresses that are served."""
        async with FencedObjects(self._access, "vipwire-ingress", self._leading) as objects:
            await self._loop.run(ours, lambda names: self._keep_all(objects, names))

    async def _keep_all(self, objects: FencedObjects, names: Iterable[ObjectName]) -> None:
        wanted = self._addresses()
        for name in names if wanted is not None else ():
            ingress = self._snapshot.ingresses.get(name)
            is_other = ingress is not None and ingress.addresses != wanted
            if wanted is not None and is_other and not self._loop.waits(name):
                await self._write(objects, name, wanted)

    async def _write(self, objects: FencedObjects, name: ObjectName, wanted: tuple[str, ...]) -> None:
        try:
            await objects.merge(path_of(_NETWORKING, "ingresses", *name, "status"), status_patch(wanted))
        except REQUEST_ERRORS as error:
            self._loop.retry(name, _LATER)
            log.warning("cannot write the status of an Ingress", object=name, error=error)
        else:
            self._loop.retry(name, _AGAIN)


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
