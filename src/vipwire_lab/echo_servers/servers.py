"""Starts the lab's echo process, and sends it orders."""

import contextlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vipwire.model.net import Protocol
from vipwire_lab.namespaces.errors import LabError
from vipwire_lab.namespaces.processes import ProcessId

_PATIENCE = 30.0  # seconds; a process takes its time to start in an emulated kernel


def start_control_process(directory: Path) -> None:
    """Start the process without waiting; its socket, pid file and log are in `directory`.

    The socket listens before the process runs, so early orders wait in the queue.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / "echo.socket"))
        listener.listen()
        log = os.open(directory / "echo.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
                (os.POSIX_SPAWN_DUP2, listener.fileno(), 9),
            ]
            argv = [sys.executable, "-m", "vipwire_lab.echo_servers.server", "9"]
            pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=actions, setsid=True)
        finally:
            os.close(log)
    process = ProcessId.of(pid)
    if process is None:
        raise LabError(f"the echo servers ended at once, see {directory / 'echo.log'}")
    process.write(directory / "echo.pid")


def request_serving(
    directory: Path,
    host: str,
    node: str,
    namespace: Path,
    ports: Sequence[int],
    protocols: Sequence[Protocol],
    addresses: Sequence[str] = (),
) -> None:
    order: dict[str, Any] = {
        "do": "serve",
        "host": host,
        "node": node,
        "namespace": str(namespace),
        "ports": list(ports),
        "protocols": [protocol.name for protocol in protocols],
        "addresses": list(addresses),
    }
    _send_order(directory, order)


def request_stop(directory: Path, host: str, ports: Sequence[int] = ()) -> int:
    """Close a host's ports (by default all) and their connections; return the number of sockets."""
    return int(_send_order(directory, {"do": "stop", "host": host, "ports": list(ports)})["stopped"])


def _send_order(directory: Path, order: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, contextlib.ExitStack() as stack:
        connection.settimeout(_PATIENCE)
        try:
            connection.connect(str(directory / "echo.socket"))
            connection.sendall(json.dumps(order).encode() + b"\n")
            reply: dict[str, Any] = json.loads(stack.enter_context(connection.makefile("rb")).readline())
        except (OSError, ValueError) as error:
            raise LabError(f"the echo servers do not answer, see {directory / 'echo.log'}") from error
    if "error" in reply:
        raise LabError(reply["error"])
    return reply
