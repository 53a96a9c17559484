"""Ports for whoever binds later: none that the kernel gives to others meanwhile, and none twice.

A port that was found by binding port 0 may be anybody's a moment later: another listener's, or the source of a
connection. These are below the range that the kernel takes such ports from, and below node ports.
"""

import itertools
import os
import socket

_FIRST, _COUNT = 20_000, 10_000
_numbers = itertools.count(os.getpid() * 97)  # each process begins elsewhere


def free_port() -> int:
    """Find a port that nobody has, for TCP and UDP, at any address of IPv4."""
    while not _is_free(port := _FIRST + next(_numbers) % _COUNT):
        pass
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        try:
            stream.bind(("", port))
            datagrams.bind(("", port))
        except OSError:
            return False
        return True
