"""What ends the proxy: a signal, or a changed configuration file (kube-proxy exits then too, to be started again)."""

import asyncio
import signal
from pathlib import Path

import watchfiles

CONFIG_CHANGED = "the configuration file has changed"


class Stop:
    """Waits for the end. Make it inside the event loop, before anything that takes long."""

    def __init__(self) -> None:
        self._reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._end, number.name)

    async def wait(self, config_file: str) -> str:
        """Wait for the end and say what it was. `config_file` may be empty."""
        if not config_file:
            return await self._reason
        changed = asyncio.ensure_future(_changed(Path(config_file)))
        changed.add_done_callback(lambda _: self._end(CONFIG_CHANGED))
        try:
            return await self._reason
        finally:
            changed.cancel()

    def _end(self, reason: str) -> None:
        if not self._reason.done():
            self._reason.set_result(reason)


async def _changed(path: Path) -> None:
    """Wait until the file's content is another one: a touched or re-mounted file with the same text is no change."""
    before = await asyncio.to_thread(_content, path)
    async for _ in watchfiles.awatch(path.parent, recursive=False):
        now = await asyncio.to_thread(_content, path)
        if now is not None and now != before:
            return


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
