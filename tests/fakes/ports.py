"""Ports to bind later: the kernel gives none of them to other programs, and this module none twice.

The kernel may reuse a port found by binding port 0 a moment later. These are below its range of ephemeral ports, and
below node ports.
"""

import itertools
import os
import socket

_FIRST, _COUNT = 20_000, 10_000
_numbers = itertools.count(os.getpid() * 97)  # each process begins at another number


def free_port() -> int:
    """Find a free port for TCP and UDP at any IPv4 address."""
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
