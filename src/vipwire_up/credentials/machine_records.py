"""Which certificates machines have been given, and which of them are refused since their machine has left. Pure.

A Secret `vipwire-machine-NODE` in kube-system has both. So every API server of the cluster knows them.

    type: vipwire.io/machine
    data.given, data.refused      a line for each certificate: SERIAL EXPIRY

A certificate that is over is refused by TLS; its line goes with the next change.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from vipwire.model.times import format_time, parse_time
from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.resource import Object
from vipwire_up.credentials.secret_text import encoded, lines_of

KIND: Final = "vipwire.io/machine"
PREFIX: Final = "vipwire-machine-"
NODE_USER: Final = "system:node:"
INGRESS_USER: Final = "ingress:"
"""How the users begin that a machine's certificates are for; its Node's name follows."""


@dataclass(frozen=True, slots=True)
class Given:
    """A certificate that was signed, by its serial number."""

    serial: int
    until: datetime


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """The certificates of a machine."""

    node: str
    given: frozenset[Given] = frozenset()
    refused: frozenset[Given] = frozenset()

    def gave(self, *certificates: Given) -> "MachineRecord":
        """Note certificates."""
        return replace(self, given=self.given | set(certificates))

    def left(self, *more: Given) -> "MachineRecord":
        """Refuse all that the machine has, and some more."""
        return replace(self, given=frozenset(), refused=self.refused | self.given | set(more))


def machine_secret(record: MachineRecord, now: datetime) -> Object:
    """Write a record, without certificates that are over."""
    meta = {"name": f"{PREFIX}{record.node}", "namespace": "kube-system"}
    data = {"given": _lines(record.given, now), "refused": _lines(record.refused, now)}
    return {"metadata": meta, "type": KIND, "data": encoded(data)}


def read_machine(secret: Object) -> MachineRecord | None:
    """Read a record; None for another Secret. What cannot be read in it is left out."""
    name = str(at(secret, "metadata", "name") or "")
    if secret.get("type") != KIND or not name.startswith(PREFIX):
        return None
    given, refused = (frozenset(_read(lines_of(secret, key))) for key in ("given", "refused"))
    return MachineRecord(name.removeprefix(PREFIX), given, refused)


def _lines(certificates: Iterable[Given], now: datetime) -> str:
    there = sorted((each for each in certificates if each.until > now), key=lambda each: (each.until, each.serial))
    return "".join(f"{each.serial:X} {format_time(each.until)}\n" for each in there)


def _read(lines: Iterable[str]) -> Iterable[Given]:
    for line in lines:
        serial, _, until = line.partition(" ")
        try:
            yield Given(int(serial, 16), parse_time(until))
        except ValueError:
            continue
