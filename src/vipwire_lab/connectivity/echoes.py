"""The echo servers of a connectivity test: processes on this Node."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from vipwire.model.net import Protocol
from vipwire_lab.connectivity.objects import Echo
from vipwire_lab.echo_servers import servers
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId, end, reap

_COUNT: Final = 2
_ATTEMPTS: Final = 5


@contextlib.contextmanager
def echo_processes(node: str, addresses: Sequence[str], protocols: Sequence[Protocol]) -> Iterator[list[Echo]]:
    """Run echo servers at this Node's addresses, each on a free port of its own."""
    with tempfile.TemporaryDirectory(prefix="vipwire-echo-") as name:
        folder = Path(name)
        servers.start(folder)
        process = ProcessId.read(folder / "echo.pid")
        try:
            names = [f"echo-{number}" for number in range(1, _COUNT + 1)]
            ports = [_serve(folder, each, node, addresses, protocols) for each in names]
            yield [Echo(*each, tuple(addresses), node) for each in zip(names, ports, strict=True)]
        finally:
            if process is not None:
                end([process])
                reap([process])


def _serve(folder: Path, name: str, node: str, addresses: Sequence[str], protocols: Sequence[Protocol]) -> int:
    """Serve on a port that is free for each protocol and address; return it."""
    for attempt in range(_ATTEMPTS):
        with socket.create_server((addresses[0], 0), family=_family(addresses[0])) as free:
            port: int = free.getsockname()[1]
        try:
            servers.serve(folder, name, node, Path(f"/proc/{os.getpid()}/ns/net"), [port], protocols, addresses)
        except LabError:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return port
    raise AssertionError  # pragma: no cover  # the last attempt returns or raises


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
