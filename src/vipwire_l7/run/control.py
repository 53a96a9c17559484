"""Talks to HAProxy's sockets: runtime commands for the worker, and the master's list of processes.

Commands go over one connection in interactive mode, where each answer ends with a prompt, so that the answers can be
separated (management.txt 9.3). A worker that was just replaced does not answer: that is an OSError.
"""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vipwire.errors import VipwireError
from vipwire.model.text import whole_number

_PROMPT = b"\n> "
_PAYLOAD = re.compile(r"^\s*(?:\+ )+")
"""HAProxy's prompt for each line of a payload."""
_SECONDS = 10.0
_MOST_RELOADS = 10**10
_HIGHEST_PID = 1 << 22
"""PID_MAX_LIMIT (linux/threads.h)."""
_AT_ONCE = 64
"""The number of commands to send before reading answers: few enough for the socket's buffers."""
_GOOD = (
    *("IP changed", "port changed", "no need to change", "nothing changed", "Success", "New empty certificate"),
    *("Transaction", "Inserting certificate", "Committing", "Certificate '", "certificate '", "Entry '"),
)
"""The starts of answers to successful commands that print a message."""
_BAD = "Failed!"
"""The end of an answer to a failed change of certificates, which starts like a successful one."""


class ControlError(VipwireError):
    """HAProxy refused a command, or does not answer."""


class Process(NamedTuple):
    """A line of the master's `show proc`."""

    pid: int
    type: str
    reloads: int


async def ask_haproxy(path: Path, commands: Sequence[str]) -> list[str]:
    """Send commands and return their answers. Raise ControlError if HAProxy does not answer."""
    try:
        async with asyncio.timeout(_SECONDS + 0.01 * len(commands)):
            return await _converse(path, commands)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ControlError(f"HAProxy does not answer at {path}: {error or type(error).__name__}") from error


async def _converse(path: Path, commands: Sequence[str]) -> list[str]:
    reader, writer = await asyncio.open_unix_connection(str(path), limit=64 << 20)
    try:
        writer.write(b"prompt\n")
        await reader.readuntil(b"> ")
        answers: list[bytes] = []
        for start in range(0, len(commands), _AT_ONCE):
            chosen = commands[start : start + _AT_ONCE]
            writer.write("".join(f"{command}\n" for command in chosen).encode("ascii"))
            await writer.drain()
            answers += [await reader.readuntil(_PROMPT) for _ in chosen]
        return [_PAYLOAD.sub("", answer.removesuffix(_PROMPT).decode(errors="replace")).strip() for answer in answers]
    finally:
        writer.close()


async def _read_process_list(path: Path) -> bytes:
    """Read HAProxy's processes from the master, up to `# programs`: vipwire configures no programs."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    try:
        writer.write(b"show proc\n")
        return await reader.readuntil(b"# programs")
    finally:
        writer.close()


async def command_haproxy(path: Path, commands: Sequence[str]) -> None:
    """Send commands that must succeed; raise ControlError with the first that failed."""
    for sent, answer in zip(commands, await ask_haproxy(path, commands), strict=True):
        if answer and (answer.endswith(_BAD) or not answer.startswith(_GOOD)):
            raise ControlError(f"HAProxy refused `{sent.partition(chr(10))[0]}`: {answer[:300]}")


async def read_mark(path: Path) -> str:
    """Return the mark of the worker's configuration; "" if no worker answers."""
    try:
        (answer,) = await ask_haproxy(path, ["show info"])
    except ControlError:
        return ""
    found = (line.removeprefix("description: ") for line in answer.splitlines() if line.startswith("description: "))
    return next(found, "")


async def list_processes(path: Path) -> list[Process]:
    """Return the master's processes; none if it does not answer."""
    try:
        async with asyncio.timeout(_SECONDS):
            answer = await _read_process_list(path)
    except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return []
    lines = (line.split() for line in answer.decode(errors="replace").splitlines())
    return [
        Process(pid, words[1], whole_number(words[2], 0, _MOST_RELOADS) or 0)
        for words in lines
        if len(words) > 2 and (pid := whole_number(words[0], 2, _HIGHEST_PID)) is not None
    ]
