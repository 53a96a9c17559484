"""`status.loadBalancer` of our Ingresses: where clients reach them, written back when it is another."""

import ipaddress
from collections.abc import Callable, Collection, Iterable

import msgspec

from vipwire.http.client import reason_of
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection, Payload
from vipwire.model.names import ObjectName
from vipwire.process import log
from vipwire_l7.ingress.run.write_loop import WriteLoop
from vipwire_l7.ingress.watch.objects import IngressKind
from vipwire_l7.ingress.watch.snapshot import Snapshot

_TIMEOUT = 10.0
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
        self._access, self._addresses, self._snapshot = access, addresses, snapshot
        self._loop = WriteLoop[ObjectName](snapshot, (IngressKind.INGRESS, IngressKind.SERVICE), leading)

    async def run(self, ours: Callable[[], Collection[ObjectName]]) -> None:
        """Write until cancelled; `ours` names the Ingresses that are served."""
        async with Connection(self._access, "vipwire-ingress") as connection:
            await self._loop.run(ours, lambda names: self._keep_all(connection, names))

    async def _keep_all(self, connection: Connection, names: Iterable[ObjectName]) -> None:
        wanted = self._addresses()
        for name in names if wanted is not None else ():
            ingress = self._snapshot.ingresses.get(name)
            is_other = ingress is not None and ingress.addresses != wanted
            if wanted is not None and is_other and not self._loop.waits(name):
                await self._write(connection, name, wanted)

    async def _write(self, connection: Connection, name: ObjectName, wanted: tuple[str, ...]) -> None:
        path = f"/apis/networking.k8s.io/v1/namespaces/{name.namespace}/ingresses/{name.name}/status"
        payload = Payload(msgspec.json.encode(status_patch(wanted)), "application/merge-patch+json")
        try:
            async with connection.request("PATCH", path, timeout=_TIMEOUT, payload=payload) as response:
                reason = "" if response.status < 300 else f"{response.status} {await response.reason_text()}"
        except TRANSPORT_ERRORS as error:
            reason = reason_of(error)
        self._loop.retry(name, _LATER if reason else _AGAIN)
        if reason:
            log.warning("cannot write the status of an Ingress", object=name, error=reason[:300])


def status_patch(addresses: Iterable[str]) -> dict[str, object]:
    """Build the merge patch of an Ingress's status: addresses as `ip`, names as `hostname`."""
    entries = [{"ip" if _is_address(text) else "hostname": text} for text in addresses]
    return {"status": {"loadBalancer": {"ingress": entries}}}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
