"""One question of a readiness probe: a connection, a request, or a command. Gives "" if well, else what is wrong.

As a kubelet asks (pkg/probe): TCP is well when a connection opens, HTTP at a status of 200 to 399, without a look at
certificates; a command at exit code 0. Here a command runs on this machine, as the user that vipwire runs as.
"""

import asyncio
import contextlib
from typing import Any, Final

import aiohttp

from vipwire.cluster.api.answers.cells import at
from vipwire.cluster.api.resource import Object

_LONGEST: Final = 200


async def ask(probe: Object, pod: Object, container: str) -> str:
    """Ask once, for timeoutSeconds at most."""
    seconds = probe.get("timeoutSeconds") or 1
    try:
        async with asyncio.timeout(seconds):
            return await _ask(probe, pod, container)
    except TimeoutError:
        return f"no answer within {seconds} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:_LONGEST]


async def _ask(probe: Object, pod: Object, container: str) -> str:
    address = str(at(pod, "status", "podIP") or "")
    if action := probe.get("tcpSocket"):
        return await _connect(action.get("host") or address, _port(action, pod, container))
    if action := probe.get("httpGet"):
        return await _get(action, action.get("host") or address, _port(action, pod, container))
    if action := probe.get("exec"):
        return await _run(action.get("command") or [])
    return "the probe says neither tcpSocket nor httpGet nor exec"


async def _connect(host: str, port: int) -> str:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def _get(action: Object, host: str, port: int) -> str:
    scheme = str(action.get("scheme") or "HTTP").lower()
    name = f"[{host}]" if ":" in host else host
    headers = {each["name"]: each["value"] for each in action.get("httpHeaders") or ()}
    url = f"{scheme}://{name}:{port}/{str(action.get('path') or '/').removeprefix('/')}"
    options: dict[str, Any] = {"headers": {"User-Agent": "kube-probe/vipwire"} | headers, "allow_redirects": False}
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False, **options) as response:
        return "" if 200 <= response.status < 400 else f"HTTP probe failed with statuscode: {response.status}"


async def _run(command: list[str]) -> str:
    if not command:
        return "the command is empty"
    null = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null)
    try:
        code = await process.wait()
    finally:
        if process.returncode is None:  # it took too long
            process.kill()
            await process.wait()
    return "" if code == 0 else f"command failed with exit code {code}"


def _port(action: Object, pod: Object, container: str) -> int:
    """Find the number of a port; raise ValueError for a name that the container has not."""
    port = action.get("port")
    if isinstance(port, int):
        return port
    containers = at(pod, "spec", "containers") or ()
    listed = [entry for each in containers if each["name"] == container for entry in each.get("ports") or ()]
    for entry in listed:
        if entry.get("name") == port:
            return int(entry["containerPort"])
    raise ValueError(f"container {container} has no port named {port}")
