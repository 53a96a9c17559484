"""Finds out by trying whether this kernel can have the table of nftables mode, without ever having it.

A kernel may have nf_tables and not its parts: no tables of a family, no NAT, no maps. No release number tells which:
distributions build some as modules, and bring others back into old releases. So what is tried is written in one
transaction whose last step cannot succeed: the kernel carries out all of it, says what it lacks, and takes everything
back before anybody could see it.

What is tried first is what belongs to no Service, and one of each part that a Service may need: of all families at
once, for the kernel takes ten milliseconds to take a transaction back. Only if that is refused, each family and each
part is tried alone, so that the error names those that are missing.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple, TypeAlias

from vipwire.errors import UnsupportedError
from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.nftables.table.features import FEATURES, LACKING, OFFLOADING, Feature
from vipwire.modes.nftables.table.names import Object, ObjectKey
from vipwire.modes.nftables.table.script import DescribedOperation, steps
from vipwire.modes.nftables.table.skeleton import node_objects
from vipwire.plan.node import NodePlan
from vipwire.reconcile.delta import Delta

_NOWHERE: Final = "vipwire-trial"
"""No table of this name is ever made: to delete it fails."""
_NEEDED: Final = tuple(each for each in FEATURES if each.needed)

Send: TypeAlias = Callable[[list[Operation]], tuple[int, list[Acknowledgement]]]
"""Sends a transaction; returns the sequence number of its beginning, and what the kernel says."""


class Refusal(NamedTuple):
    """The operation that the kernel does not take, in words, and its errno."""

    words: str
    code: int

    def __str__(self) -> str:
        return f"`{self.words}` ({errno.errorcode.get(self.code, self.code)})"


def probe(families: Iterable[Family]) -> None:
    """Raise UnsupportedError, with what the kernel lacks and how to get it, if it cannot have our table."""
    with _sending() as send:
        try_tables(tuple(families), send)


def obstacle_to_offloading(families: Iterable[Family]) -> str:
    """Say what the kernel lacks to offload connections, and how to get it; "" if it can. Raise OSError if unasked."""
    with _sending() as send:
        return next(filter(None, (try_offloading(family, send) for family in families)), "")


@contextmanager
def _sending() -> Iterator[Send]:
    with NetlinkSocket(NETLINK_NETFILTER) as sock:

        def send(operations: list[Operation]) -> tuple[int, list[Acknowledgement]]:
            first = sock.sequence(len(operations) + 2)
            sock.send(encode.transaction(operations, first))
            return first, sock.acknowledgements()

        yield send


def try_tables(families: Sequence[Family], send: Send) -> None:
    """Try the tables of all families at once, and each by itself if that is refused."""
    if families and _tried({family: _whole(family) for family in families}, send) is not None:
        for family in families:
            try_table(family, send)


def try_table(family: Family, send: Send) -> None:
    """Try everything at once; if the kernel refuses it, raise UnsupportedError with the parts that are missing."""
    refusal = _tried({family: _whole(family)}, send)
    if refusal is not None:
        missing = [each for each in _NEEDED if _tried({family: each.objects(family)}, send)]
        raise _unsupported(family, refusal, missing)


def _whole(family: Family) -> Mapping[ObjectKey, Object]:
    """Collect what belongs to no Service, and one of each part that a Service may need."""
    whole = dict(node_objects(NodePlan(family)))
    for feature in _NEEDED:
        whole.update(feature.objects(family))
    return whole


def try_offloading(family: Family, send: Send) -> str:
    """Try a flowtable; return what is missing, and what to do."""
    refusal = _tried({family: OFFLOADING.objects(family)}, send)
    if refusal is None:
        return ""
    return (
        f"this kernel cannot offload connections of {family.value}: it does not take {refusal}; load or build in "
        f"{OFFLOADING.module}, in Linux {OFFLOADING.since} or newer"
    )


def _tried(objects: Mapping[Family, Mapping[ObjectKey, Object]], send: Send) -> Refusal | None:
    """Commit a table of these objects in each family, and take all back."""
    tried: list[DescribedOperation] = []
    for family, wanted in objects.items():
        tried += steps(family, Delta(added=dict(wanted)), recreate=True)
    tried.append(DescribedOperation(encode.delete_table(next(iter(objects)), _NOWHERE), "delete no table"))
    first, answers = send([step.operation for step in tried])
    for answer in answers:
        step = encode.refused(tried, first, answer.sequence)
        if answer.errno in LACKING and step is not tried[-1]:
            return Refusal(step.words if step else "a transaction", answer.errno)
    return None


def _unsupported(family: Family, refusal: Refusal, missing: list[Feature]) -> UnsupportedError:
    name = family.value
    said = f"nftables mode cannot be used here: the kernel has nf_tables, but does not take {refusal} for {name}"
    if not missing:  # none of the parts alone, so that nobody knows better than the kernel
        return UnsupportedError(f"{said}: use another mode (--proxy-mode)")
    parts = "; ".join(f"{each.name} (in Linux since {each.since})" for each in missing)
    modules = ", ".join(dict.fromkeys(each.module for each in missing)).format(family=name.upper())
    return UnsupportedError(
        f"{said}; it lacks {parts}: load or build in {modules}, use a newer kernel, or another mode (--proxy-mode)"
    )
