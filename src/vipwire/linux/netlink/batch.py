"""Sends many requests in few datagrams. The kernel answers those that it refuses, and the last.

A datagram is limited: the answers must fit the receive buffer even if the kernel refuses every request.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from vipwire.linux.netlink.message import NLM_F_ACK, NLM_F_REQUEST, Acknowledgement, encode_message
from vipwire.linux.netlink.socket import NetlinkSocket

LARGEST: Final = 64 << 10


class NetlinkRequest(NamedTuple):
    """One message to send: its type, its payload, and flags beside NLM_F_REQUEST."""

    kind: int
    payload: bytes
    flags: int = 0


class Sent(NamedTuple):
    """The result of a batch: its size in bytes, and the refused requests by their index."""

    size: int
    refused: dict[int, Acknowledgement]


def send_batch(link: NetlinkSocket, requests: Iterable[NetlinkRequest]) -> Sent:
    """Send requests in order. The kernel executes or refuses each separately: a batch is not a transaction."""
    refused: dict[int, Acknowledgement] = {}
    block: list[tuple[NetlinkRequest, int]] = []
    size = total = 0
    first: int | None = None

    def flush() -> None:
        nonlocal block, size
        last = len(block) - 1
        data = b"".join(
            encode_message(
                each.kind, NLM_F_REQUEST | each.flags | (NLM_F_ACK if at == last else 0), sequence, each.payload
            )
            for at, (each, sequence) in enumerate(block)
        )
        link.send(data)
        for answer in link.read_acknowledgements():
            if answer.errno and first is not None:
                refused[answer.sequence - first] = answer
        block, size = [], 0

    for request in requests:
        sequence = link.reserve_sequence_numbers()
        first = sequence if first is None else first
        block.append((request, sequence))
        length = 16 + len(request.payload)
        size += length
        total += length
        if size >= LARGEST:
            flush()
    if block:
        flush()
    return Sent(total, refused)
