"""`vipwire lab view`: the page of a lab's node, in a browser of this machine.

The page runs inside the node's network namespace, so a port of this machine's loopback is forwarded to it. The page
ends when its standard input closes, which this process holds, so no page survives this process.
"""

import asyncio
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from vipwire.process_lifecycle.event_loop import run_until_first_ends
from vipwire.terminal.output import print_line
from vipwire_lab.cluster import state
from vipwire_lab.cluster.cluster import Lab
from vipwire_lab.namespaces import netns
from vipwire_lab.namespaces.errors import LabError

PORT: Final = 10247
_HERE: Final = "127.0.0.1"
_PIECE: Final = 1 << 16


def show_page(lab: Lab, node: str, port: int) -> None:
    """Serve a node's page at a port of this machine until interrupted; raise LabError if the page ends by itself."""
    page = ("view", "--until-input-ends", "--view-bind-address", f"{_HERE}:{PORT}")
    command = [sys.executable, "-m", "vipwire", *page]
    with state.own_state(lab.name):
        started = lab.popen(node, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with started as process:
        try:
            if process.stdout is None or not process.stdout.readline():
                said = process.stderr.read().decode(errors="replace").strip() if process.stderr else ""
                raise LabError(f"cannot serve the page of {node}: {said.removeprefix('error: ')}")
            asyncio.run(_forward_port(lab.namespace_of(node), port))
        except KeyboardInterrupt:
            return
        finally:
            process.terminate()


async def _forward_port(namespace: Path, port: int) -> None:
    try:
        server = await asyncio.start_server(partial(_serve_connection, namespace), _HERE, port)
    except OSError as error:
        raise LabError(f"cannot listen at {_HERE}:{port}: {error.strerror}; choose another --port") from error
    print_line(f"Serving at http://{_HERE}:{server.sockets[0].getsockname()[1]}/")
    async with server:
        await server.serve_forever()


async def _serve_connection(namespace: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        with netns.enter_namespace(namespace):
            inner = socket.socket()
        inner.settimeout(0)
        try:
            await asyncio.get_running_loop().sock_connect(inner, (_HERE, PORT))
        except OSError:
            inner.close()
            return
        there, back = await asyncio.open_connection(sock=inner)
        with closing(back):
            await run_until_first_ends(_copy_stream(reader, back), _copy_stream(there, writer))


async def _copy_stream(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()
    except ConnectionError:
        return
