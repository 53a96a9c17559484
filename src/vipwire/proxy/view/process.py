"""Runs `vipwire view` beside the proxy, in a process of its own, for `--view-bind-address`.

What browsers ask takes time, and looking at ten thousand Services does: a sync must not wait for it. The process
reads objects and kernel itself, with the proxy's flags, at a lower priority. It ends when its standard input does, so
that it never outlives the proxy, and it is started again if it fails.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable

from vipwire.config.configuration import Config
from vipwire.config.flags.parse import explicit_flags
from vipwire.process import log

_LOOK_SECONDS = 1.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PATIENCE = 3.0


class ViewProcess:
    """The page of a proxy whose configuration `config` returns."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config

    async def run(self) -> None:
        """Serve the page where the configuration wants it, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            wanted = command_line(self._config())
            if wanted:
                lasted = await self._serve(wanted)
                pause = _FIRST_PAUSE if lasted else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause if wanted else _LOOK_SECONDS)

    async def _serve(self, command: tuple[str, ...]) -> bool:
        """Run the command until it ends or another is wanted; report whether it was for that."""
        null = asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stdout=null)
        try:
            while process.returncode is None:
                if command_line(self._config()) != command:
                    return True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await process.wait()
        finally:
            await _end(process)
        log.warning("the page of --view-bind-address ended; it is started again", status=process.returncode)
        return False


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError):
        process.kill()
        await process.wait()


def command_line(config: Config) -> tuple[str, ...]:
    """Write the command that serves a configuration's page; nothing where it wants none."""
    if not config.view_bind_address:
        return ()
    own = (f"--view-bind-address={config.view_bind_address}", "--beside-proxy", f"--state-dir={config.state_dir}")
    return (sys.executable, "-m", "vipwire", "view", *own, *explicit_flags(config))
