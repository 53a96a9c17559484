"""A minimal runner of transactions and dumps, for tests of the codec, which has no socket."""

import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vipwire.linux.netlink.message import Acknowledgement
from vipwire.linux.netlink.nftables import decode, encode
from vipwire.linux.netlink.nftables.elements import Element, decode_elements
from vipwire.linux.netlink.nftables.encode import Operation
from vipwire.linux.netlink.nftables.wire import MessageType
from vipwire.linux.netlink.socket import NetlinkSocket
from vipwire.model.net import Family

T = TypeVar("T")


@dataclass(frozen=True)
class Refused(Exception):  # noqa: N818 - what happened, not an error of the test
    """The kernel's error, and its operation."""

    answer: Acknowledgement
    operation: Operation | None


def commit(netlink: NetlinkSocket, operations: Sequence[Operation]) -> None:
    """Send one transaction; raise Refused for the first refused operation."""
    first = netlink.reserve_sequence_numbers(len(operations) + 2)
    netlink.send(*encode.encode_transaction(operations, first))
    answers = netlink.read_acknowledgements()
    assert answers, "the kernel answers every transaction"
    for answer in answers:
        if answer.errno:
            raise Refused(answer, encode.find_refused(operations, first, answer.sequence))


def dump(netlink: NetlinkSocket, kind: MessageType, request: bytes, read: Callable[[memoryview], T]) -> list[T]:
    return [read(payload) for payload in netlink.dump(kind, request)]


def elements(netlink: NetlinkSocket, family: Family, declaration: decode.SetDeclaration) -> Iterator[Element]:
    request = encode.list_elements(family, declaration.table, declaration.name)
    for payload in netlink.dump(MessageType.GETSETELEM, request):
        yield from decode_elements(payload, declaration.key_length, declaration.value_length)


def nft(*words: str, stdin: str | None = None) -> str:
    """Run nft; return its output, or fail with its error."""
    done = subprocess.run(["nft", *words], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"nft {' '.join(words)}: {done.stderr or done.stdout}\n{stdin or ''}"
    return done.stdout
