"""One readiness probe: a connection, a request, or a command. Returns "" for success, else the problem.

As a kubelet does (pkg/probe): TCP succeeds when a connection opens, HTTP at a status of 200 to 399, without verifying
certificates, after ten redirects of the Pod to itself at most; a command at exit code 0, on this machine. A redirect
to another host counts as success, an exception as a failure.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Final
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from vipwire.http_client.client import Client, Server, reason_of
from vipwire.model.net import add_brackets
from vipwire_up.api.objects.object import value_at
from vipwire_up.api.objects.resource import Object
from vipwire_up.readiness_probes.commands import RunAs, run_command

_LONGEST: Final = 200
_MOST: Final = 86_400
_MOST_REQUESTS: Final = 10
_REDIRECTS: Final = (301, 302, 303, 307, 308)


async def run_probe(probe: Object, pod: Object, container: str, who: RunAs | None = None) -> str:
    """Probe once, for timeoutSeconds at most; a command runs as `who`."""
    seconds = probe_number(probe, "timeoutSeconds", 1)
    try:
        async with asyncio.timeout(seconds):
            return await _run_action(probe, pod, container, who)
    except TimeoutError:
        return f"no answer within {seconds} s"
    except Exception as error:  # noqa: BLE001  # a probe that vipwire cannot run has failed
        file = getattr(error, "filename", None)
        return (f"{reason_of(error)}: {file}" if file else reason_of(error))[:_LONGEST]


def probe_number(probe: Object, name: str, default: int) -> int:
    """Return one of a probe's numbers, from 1 to a day; the default if invalid."""
    value = probe.get(name)
    return min(value, _MOST) if isinstance(value, int) and value > 0 else default


async def _run_action(probe: Object, pod: Object, container: str, who: RunAs | None) -> str:
    address = str(value_at(pod, "status", "podIP") or "")
    if action := probe.get("tcpSocket"):
        return await _probe_tcp(action.get("host") or address, _resolve_port(action, pod, container))
    if action := probe.get("httpGet"):
        return await _probe_http(action, action.get("host") or address, _resolve_port(action, pod, container))
    if action := probe.get("exec"):
        return await _probe_exec(action.get("command") or [], who)
    return "the probe has none of tcpSocket, httpGet and exec"


async def _probe_tcp(host: str, port: int) -> str:
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def _probe_http(action: Object, host: str, port: int) -> str:
    scheme = str(action.get("scheme") or "HTTP").lower()
    fields = {str(each["name"]).title(): str(each["value"]) for each in action.get("httpHeaders") or ()}
    target = quote(f"/{str(action.get('path') or '/').removeprefix('/')}", safe="/?&=%:;,@!$'()*+~[]")
    url = urlsplit(f"{scheme}://{add_brackets(host)}:{port}{target}")
    headers = {"User-Agent": "kube-probe/vipwire", "Accept": "*/*", "Connection": "close", **fields}
    for _ in range(_MOST_REQUESTS):
        status, location = await _send_http_request(url, headers)
        to = urlsplit(urljoin(url.geturl(), location))
        if status not in _REDIRECTS or not location or to.hostname != url.hostname:
            return "" if 200 <= status < 400 else f"HTTP probe failed with statuscode: {status}"
        url = to
    return f"stopped after {_MOST_REQUESTS} redirects"


async def _send_http_request(url: SplitResult, headers: Mapping[str, str]) -> tuple[int, str]:
    """Send a request; return the status and the Location."""
    server = Server(f"{url.scheme}://{url.netloc}", _make_unverified_context() if url.scheme == "https" else None)
    client = Client()
    try:
        target = urlunsplit(("", "", url.path or "/", url.query, ""))
        async with client.request(server, "GET", target, headers, timeout=_MOST) as response:
            return response.status, response.headers.get("location", "")
    finally:
        await client.close()


@cache
def _make_unverified_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def _probe_exec(command: list[str], who: RunAs | None) -> str:
    if not command:
        return "the command is empty"
    code = await run_command([str(word) for word in command], who)
    return "" if code == 0 else f"command failed with exit code {code}"


def _resolve_port(action: Object, pod: Object, container: str) -> int:
    """Return the number of a port; raise ValueError if it is invalid, or a name that the container does not have."""
    port = action.get("port")
    if isinstance(port, int):
        if not 0 < port < 65536:
            raise ValueError(f"{port} is not a port (1 to 65535)")
        return port
    containers = value_at(pod, "spec", "containers") or ()
    listed = [entry for each in containers if each["name"] == container for entry in each.get("ports") or ()]
    for entry in listed:
        if entry.get("name") == port:
            return int(entry["containerPort"])
    raise ValueError(f"container {container} has no port named {port}")
