"""Keeps in the store which certificates machines have, and refuses those of a machine that has left."""

from collections.abc import Callable
from typing import Final

from vipwire.kube.errors import ApiError
from vipwire_up.api.kinds.small_kinds import SECRETS
from vipwire_up.api.objects.resource import Object
from vipwire_up.api.registry import Registry
from vipwire_up.credentials.records import MACHINE_PREFIX, Given, MachineRecord, machine_secret, read_machine
from vipwire_up.machines.objects import LocalObjects

_NAMESPACE: Final = "kube-system"


class Certified:
    """The records of machines in a registry. Raise ApiError where one cannot be written."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._objects = registry, LocalObjects(registry, "vipwire-machines")

    async def gave(self, node: str, certificate: Given) -> None:
        """Note a certificate before the machine gets it."""
        await self._change(node, lambda record: record.gave(certificate))

    async def refuse(self, node: str, *more: Given) -> None:
        """Refuse all certificates of a machine, and some more of it that are not noted."""
        await self._change(node, lambda record: record.left(*more))

    async def _change(self, node: str, change: Callable[[MachineRecord], MachineRecord]) -> None:
        def edit(value: Object) -> Object:
            record = change(read_machine(value) or MachineRecord(node))
            return value | {"data": machine_secret(record, self._registry.clock())["data"]}

        try:
            await self._objects.edit(SECRETS, _NAMESPACE, f"{MACHINE_PREFIX}{node}", edit)
        except ApiError as error:
            if error.code != 404:
                raise
            new = machine_secret(change(MachineRecord(node)), self._registry.clock())
            await self._objects.create(SECRETS, _NAMESPACE, new)
