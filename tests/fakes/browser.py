"""A real browser, Debian's chromium without a window, steered by the DevTools protocol: what people see of a page.

with chromium(lab_netns_or_none) as browser:
    page = await browser.open("http://127.0.0.1:10247/")
    await page.until("document.querySelector('.row')")
"""

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp

PATIENCE: Final = 60.0
_FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync"),
    *("--no-default-browser-check", "--hide-scrollbars", "--window-size=1280,900", "--remote-debugging-port=0"),
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.complaints: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; raise AssertionError with its error."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            async with asyncio.timeout(PATIENCE):
                said = await self._socket.receive_json()
            self._note(said)
            if said.get("id") == number:
                assert "error" not in said, said
                result: dict[str, Any] = said["result"]
                return result

    def _note(self, said: dict[str, Any]) -> None:
        """Keep complaints of the page's console and the browser's policy."""
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["params"]["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            self.complaints.append(said["params"]["entry"]["text"])

    async def go(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def value(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        done = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true; return it."""
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                while not (found := await self.value(f"Boolean({script})")):
                    await self.value("new Promise((done) => requestAnimationFrame(done))")
        assert found, f"{script}\n{await self.value('document.body.innerText')}\n{self.complaints}"
        return found

    async def look(self, path: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Take a screenshot at this window size."""
        mobile = width < 600
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
        await self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.value("new Promise((done) => setTimeout(done, 400))")
        taken = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(taken["data"]))  # noqa: ASYNC240  # nothing else runs in this loop


@contextlib.asynccontextmanager
async def chromium(within: Sequence[str] = ()) -> AsyncIterator[Page]:
    """Run a browser with one tab; `within` is a command prefix, such as for a network namespace."""
    program = shutil.which("chromium")
    assert program, "scripts/setup test installs chromium"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        process = await asyncio.create_subprocess_exec(
            *within, program, *_FLAGS, f"--user-data-dir={home}", "about:blank", stderr=asyncio.subprocess.PIPE
        )
        try:
            port = await _port(process)
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/json") as answer:
                tab = next(each for each in await answer.json() if each["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.call(f"{domain}.enable")
                    yield page
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    """Read the browser's own DevTools port."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        async for line in process.stderr:
            if b"DevTools listening on" in line:
                return int(line.decode().split("127.0.0.1:")[1].partition("/")[0])
    raise AssertionError("the browser has not started")
