"""`status.loadBalancer` of our Ingresses: where clients reach them, written back when it is another."""

import asyncio
import ipaddress
from collections.abc import Callable, Iterable, Mapping

import msgspec

from vipwire.http.client import reason_of
from vipwire.ingress.watch.objects import Ingress
from vipwire.kube.access.access import Access
from vipwire.kube.access.connection import TRANSPORT_ERRORS, Connection, Payload
from vipwire.model.names import ObjectName
from vipwire.process import log

_EVERY = 1.0
_TIMEOUT = 10.0
_LATER = 30.0
"""Seconds after which a write that was refused is tried again."""


class StatusWriter:
    """Writes the addresses into the status of the Ingresses that are ours."""

    def __init__(
        self, access: Access, addresses: Callable[[], tuple[str, ...] | None], leading: Callable[[], bool]
    ) -> None:
        """`addresses` gives what is to be written, None while that is not known; `leading` whether we are to."""
        self._access, self._addresses, self._leading = access, addresses, leading
        self._failed: dict[ObjectName, float] = {}

    async def run(
        self, ours: Callable[[], Iterable[ObjectName]], ingresses: Callable[[], Mapping[ObjectName, Ingress]]
    ) -> None:
        """Write until cancelled; `ours` names the Ingresses that are served."""
        loop = asyncio.get_running_loop()
        async with Connection(self._access, "vipwire-ingress") as connection:
            while True:
                known, wanted = ingresses(), self._addresses()
                for name in ours() if wanted is not None and self._leading() else ():
                    ingress = known.get(name)
                    waiting = self._failed.get(name, 0.0) > loop.time()
                    if wanted is not None and ingress is not None and not waiting and ingress.addresses != wanted:
                        await self._write(connection, name, wanted, loop.time())
                await asyncio.sleep(_EVERY)

    async def _write(self, connection: Connection, name: ObjectName, wanted: tuple[str, ...], now: float) -> None:
        path = f"/apis/networking.k8s.io/v1/namespaces/{name.namespace}/ingresses/{name.name}/status"
        payload = Payload(msgspec.json.encode(status_patch(wanted)), "application/merge-patch+json")
        try:
            async with connection.request("PATCH", path, timeout=_TIMEOUT, payload=payload) as response:
                reason = "" if response.status < 300 else f"{response.status} {await response.text()}"
        except TRANSPORT_ERRORS as error:
            reason = reason_of(error)
        # What was written comes back by the watch; until then it is not written again.
        self._failed[name] = now + (_LATER if reason else 5.0)
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
