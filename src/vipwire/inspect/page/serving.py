"""Runs the page: the token, the listening socket, the thread that looks, until a signal or the end of the input."""

import asyncio
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.http.server import serve
from vipwire.inspect.page.board import Board
from vipwire.inspect.page.gate import Gate, is_loopback
from vipwire.inspect.page.look import Look
from vipwire.inspect.page.site import PageSite
from vipwire.process.files import create_file
from vipwire.proxy.serve.server import listen, split_address

_SHORTEST_TOKEN: Final = 16


@dataclass(frozen=True, slots=True)
class Serving:
    """What an operator has chosen. `beside`: be nice to the proxy. `bound`: end with the standard input."""

    address: str
    hosts: frozenset[str]
    token_file: Path | None
    beside: bool = False
    bound: bool = False


def run_page(config: Config, serving: Serving, ready: Callable[[str, Path | None], None]) -> None:
    """Serve the page until a signal. `ready` is told its address, and the file of the token if it asks for one."""
    host, port = split_address(serving.address)
    path = serving.token_file
    if path is None and not is_loopback(host):
        path = Path(config.state_dir) / "view-token"
    token = read_token(path) if path is not None else ""
    if serving.beside:
        os.nice(5)
    asyncio.run(_run(config, Gate(serving.hosts, token), serving, (host, port), lambda url: ready(url, path)))


async def _run(
    config: Config, gate: Gate, serving: Serving, place: tuple[str, int], ready: Callable[[str], None]
) -> None:
    loop, board, ending = asyncio.get_running_loop(), Board(), asyncio.Event()

    def publish(word: str, document: Any) -> None:
        loop.call_soon_threadsafe(_put, board, word, document)

    look = Look(config, publish)
    try:
        listener = listen(*place)
    except OSError as error:
        raise UnsupportedError(f"cannot listen on {serving.address}: {error.strerror or error}") from error
    served = await serve(listener, PageSite(gate, board, look))
    look.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if serving.bound:
        loop.add_reader(sys.stdin, _ended, ending)
    host, port = listener.getsockname()[:2]
    ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
    await ending.wait()
    await served.close()


def _put(board: Board, word: str, document: Any) -> None:
    if word == "rows":
        board.put_rows(document)
    else:
        board.put(word, document)


def _ended(ending: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        ending.set()


def read_token(path: Path) -> str:
    """Read the token of a file that only its owner can read; make it if there is none. Raise ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _make_token(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        about = os.fstat(descriptor)
        if about.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{path}: belongs to user {about.st_uid}, who knows this token: remove it")
        if stat.S_IMODE(about.st_mode) & 0o077:
            raise ConfigError(f"{path}: others can read this token: chmod 600 {path}")
        token = file.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isalnum():
        raise ConfigError(
            f"{path}: a token has at least {_SHORTEST_TOKEN} letters and digits; remove it for a new one"
        )
    return token


def _make_token(path: Path) -> str:
    token = secrets.token_hex(24)
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        create_file(path, f"{token}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the token: {error.strerror}") from error
    return token
