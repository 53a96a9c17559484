"""BIRD 2 as a child process: its configuration for a set of routes, its start, its end.

The routes are static ones that lead nowhere. BIRD tells them to its peers; the kernel gets none, because no protocol
`kernel` is configured. BIRD imports no routes from the peers.

A BIRD that an earlier, killed vipwire left is found by its control socket and continues: its routes are still true,
as the rules in the kernel are. BIRD checks each configuration, and keeps the old one if the new one is invalid.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from vipwire.errors import UnsupportedError, VipwireError
from vipwire.file_io.files import replace_file
from vipwire_up.bgp.settings import BgpSettings, Peer


def render_bird_configuration(settings: BgpSettings, router_id: str, routes: Iterable[str]) -> str:
    routes = tuple(routes)
    lines = [
        "# written by vipwire; changes are lost",
        f"router id {settings.router_id or router_id};",
        "protocol device {}",
        *_render_static_routes("ipv4", 32, (each for each in routes if ":" not in each)),
        *_render_static_routes("ipv6", 128, (each for each in routes if ":" in each)),
        *(
            line
            for number, peer in enumerate(settings.peers, 1)
            for line in _render_peer(settings.number, number, peer)
        ),
    ]
    return "\n".join(lines) + "\n"


def _render_static_routes(family: str, length: int, routes: Iterable[str]) -> Iterator[str]:
    yield f"protocol static vipwire_{family} {{"
    yield f"  {family};"
    yield from (f"  route {each}/{length} blackhole;" for each in routes)
    yield "}"


def _render_peer(ours: int, number: int, peer: Peer) -> Iterator[str]:
    yield f"protocol bgp vipwire_peer_{number} {{"
    yield f"  local as {ours};"
    yield f"  neighbor {peer.address} as {peer.number};"
    yield "  hold time 9;"
    yield "  keepalive time 3;"
    yield "  connect retry time 5;"
    yield "  error wait time 1, 30;"
    for family in ("ipv4", "ipv6"):
        yield f'  {family} {{ import none; export where proto = "vipwire_{family}"; next hop self; }};'
    yield "}"


_PATIENCE: Final = 10.0
_LOOK: Final = 0.02


class Bird:
    """The BIRD process and its folder."""

    def __init__(self, folder: Path, program: str = "bird", control: str = "birdc") -> None:
        found = [shutil.which(each, path=f"{os.environ.get('PATH', '')}:/usr/sbin") for each in (program, control)]
        if found[0] is None or found[1] is None:
            raise UnsupportedError(f"{program} is not installed (Debian: apt install bird2)")
        self._program, self._control = found[0], found[1]
        self._file, self._socket, self._pid = folder / "bird.conf", folder / "bird.ctl", folder / "bird.pid"
        self._child: asyncio.subprocess.Process | None = None

    async def apply_configuration(self, configuration: str) -> None:
        """Start BIRD with a configuration, or reload it. Raise VipwireError with BIRD's message."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file, configuration.encode("ascii"))
        except OSError as error:
            raise VipwireError(f"{error.filename}: {error.strerror}") from error
        if not await self.is_ready():
            await self._start_program()
            return
        said = await self._run_birdc("configure")
        if "Reconfigured" not in said and "Reconfiguration in progress" not in said:
            raise VipwireError(f"BIRD rejects its configuration: {said}")

    async def is_ready(self) -> bool:
        return "ready" in await self._run_birdc("show", "status") if self._socket.exists() else False

    async def stop(self) -> None:
        await self._run_birdc("down")
        self._socket.unlink(missing_ok=True)
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGTERM)
            await self._child.wait()
            self._child = None

    async def _start_program(self) -> None:
        self._socket.unlink(missing_ok=True)
        command = (self._program, "-f", "-c", str(self._file), "-s", str(self._socket), "-P", str(self._pid))
        self._child = child = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        async with asyncio.timeout(_PATIENCE):
            while not await self.is_ready():
                if child.returncode is not None:
                    assert child.stderr is not None  # noqa: S101  # as started above
                    said = (await child.stderr.read()).decode(errors="replace").strip()
                    raise VipwireError(f"BIRD does not start: {said or f'status {child.returncode}'}")
                await asyncio.sleep(_LOOK)

    async def _run_birdc(self, *words: str) -> str:
        """Run a birdc command; "" if BIRD does not answer."""
        asking = await asyncio.create_subprocess_exec(
            self._control,
            "-s",
            str(self._socket),
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(_PATIENCE):
                said, _ = await asking.communicate()
        except TimeoutError:
            asking.kill()
            await asking.wait()
            return ""
        return said.decode(errors="replace").strip()
