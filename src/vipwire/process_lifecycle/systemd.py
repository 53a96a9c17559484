"""Notifies systemd that this process is ready, alive, or stopping (sd_notify(3)).

A unit with Type=notify has started when READY=1 arrives. With WatchdogSec= systemd restarts a process whose event
loop hangs that long. Without systemd ($NOTIFY_SOCKET) these functions do nothing.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_ALIVE: Final = "WATCHDOG=1"


def notify(state: str, environ: Mapping[str, str] = os.environ) -> None:
    path = environ.get("NOTIFY_SOCKET", "")
    if not path:
        return
    address = f"\0{path[1:]}" if path.startswith("@") else path
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
    ):
        sender.sendto(state.encode(), address)


def read_watchdog_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """Return the interval at which systemd expects a notification, 0 for never."""
    text = environ.get("WATCHDOG_USEC", "")
    ours = environ.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
    return int(text) / 1e6 if ours and text.isdecimal() else 0.0


async def keep_alive(environ: Mapping[str, str] = os.environ) -> None:
    """Notify systemd regularly from the event loop, until cancelled."""
    seconds = read_watchdog_seconds(environ)
    while seconds:
        notify(_ALIVE, environ)
        await asyncio.sleep(seconds / 3)
