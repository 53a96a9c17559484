"""How far a connection came that timed out, by the kernel's tcp_info, and what hosts count of lost packets."""

import struct

import pytest
from tests.proxy.conformance.lost import counters

from vipwire_lab.cluster.probe import SIZE, describe_progress


def info(state: int, unacknowledged: int = 0, repeated: int = 0, received: int = 0, unsent: int = 0) -> bytes:
    """Write as much of a tcp_info as is needed."""
    made = bytearray(SIZE)
    made[0] = state
    struct.pack_into("=I", made, 24, unacknowledged)
    struct.pack_into("=I", made, 100, repeated)
    struct.pack_into("=Q", made, 128, received)
    struct.pack_into("=I", made, 144, unsent)
    return bytes(made)


@pytest.mark.parametrize(
    ("told", "unread", "words"),
    [
        (info(2, 1, 5), 0, "no answer to the SYN, sent again 5 times"),
        (info(2, 1), 0, "no answer to the SYN, not sent again"),
        (info(1, 1, 3), 0, "connected, the request is not acknowledged, sent again 3 times"),
        (info(1, unsent=6), 0, "connected, 6 bytes of the request are unsent"),
        (info(1), 0, "connected, the request is acknowledged, 0 bytes received"),
        (info(1, 0, 0, 154), 154, "connected, 154 bytes of the answer are unread"),
        (info(8), 0, "in TCP state 8, the request is acknowledged, 0 bytes received"),
        (info(1)[:104], 0, ""),
    ],
)
def test_progress(told: bytes, unread: int, words: str) -> None:
    assert describe_progress(told, unread) == words


def test_counters_that_tell_of_lost_packets_are_picked_and_added_up() -> None:
    files = {
        "netstat": "TcpExt: SyncookiesSent ListenDrops TCPSynRetrans\nTcpExt: 4 7 0\nIpExt: InNoRoutes\nIpExt: 2\n",
        "snmp6": "Ip6InReceives                   \t90\nIp6InNoRoutes                   \t3\n",
        "stat/nf_conntrack": "entries  insert_failed drop\n00000017  00000001 00000000\n00000017  00000010 0\n",
        "snmp": "",
    }
    assert counters(files) == {"ListenDrops": 7, "InNoRoutes": 2, "Ip6InNoRoutes": 3, "insert_failed": 17}
