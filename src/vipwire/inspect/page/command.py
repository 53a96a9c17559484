"""`vipwire view`: the command, the token and the listening socket."""

import asyncio
import os
import secrets
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from vipwire.config.configuration import VIEW_PORT, Config
from vipwire.errors import ConfigError, UnsupportedError
from vipwire.file_io.files import create_file, make_folders
from vipwire.http_server.pages import serve_pages
from vipwire.inspect.command.options import LookCommand
from vipwire.inspect.page.board import Board
from vipwire.inspect.page.gate import AccessControl, is_loopback
from vipwire.inspect.page.look import Look
from vipwire.inspect.page.site import PageSite
from vipwire.process_lifecycle import event_loop
from vipwire.proxy_daemon.serve.server import open_listening_socket, split_address
from vipwire.terminal.output import print_line, print_note

_SHORTEST_TOKEN: Final = 16


@click.command(cls=LookCommand)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A DNS name of this server, which browsers may use besides its IP address.",
)
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the token; created if absent.")
@click.option("--beside-proxy", is_flag=True, hidden=True)
@click.option("--until-input-ends", is_flag=True, hidden=True)
def view(
    config: Config, hosts: tuple[str, ...], token_file: Path | None, *, beside_proxy: bool, until_input_ends: bool
) -> None:
    """Serve a page that shows Services, endpoints, rates, rules and changes, live, for a browser.

    The address is http://127.0.0.1:10247/ without --view-bind-address. At an address other than loopback the page
    asks for the token in the file view-token of --state-dir, and has no TLS: prefer `ssh -L 10247:127.0.0.1:10247
    NODE`. The page has the contents of `status`, `top`, `explain`, `plan` and `diff`, and changes nothing. `vipwire
    proxy` and `vipwire up` serve the same page with --view-bind-address.
    """
    address = config.view_bind_address or f"127.0.0.1:{VIEW_PORT}"
    path = token_file
    if path is None and not is_loopback(split_address(address)[0]):
        path = Path(config.state_dir) / "view-token"
    token = read_token(path) if path is not None else ""
    if beside_proxy:
        os.nice(5)

    def ready(url: str) -> None:
        if not beside_proxy:
            print_line(f"Serving at {url}" + (f"?token={token}" if token else ""))
            print_note("Press Ctrl-C to stop.")

    gate = AccessControl(frozenset(name.lower() for name in hosts), token)
    event_loop.run_in_loop(_serve_page(config, gate, address, ready, bound=beside_proxy or until_input_ends))


async def _serve_page(
    config: Config, gate: AccessControl, address: str, ready: Callable[[str], None], *, bound: bool
) -> None:
    """Serve the page until a signal or, if `bound`, until standard input ends."""
    loop, board, ending = asyncio.get_running_loop(), Board(), asyncio.Event()

    def publish(word: str, document: Any) -> None:
        loop.call_soon_threadsafe(_put_document, board, word, document)

    look = Look(config, publish)
    try:
        listener = open_listening_socket(*split_address(address))
    except OSError as error:
        raise UnsupportedError(f"cannot listen on {address}: {error.strerror or error}") from error
    served = serve_pages(listener, PageSite(gate, board, look))
    look.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if bound:
        loop.add_reader(sys.stdin, _end_with_input, ending)
    host, port = listener.getsockname()[:2]
    ready(f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/")
    await ending.wait()
    await served.close()


def _put_document(board: Board, word: str, document: Any) -> None:
    if word == "rows":
        board.put_rows(document)
    else:
        board.put_document(word, document)


def _end_with_input(ending: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 1024):
        ending.set()


def read_token(path: Path) -> str:
    """Read the token from a file that only its owner can read; create the file if missing. Raise ConfigError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _create_token(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
        about = os.fstat(descriptor)
        if about.st_uid not in (0, os.geteuid()):
            raise ConfigError(f"{path}: user {about.st_uid} owns this file and can read the token: remove the file")
        if stat.S_IMODE(about.st_mode) & 0o077:
            raise ConfigError(f"{path}: others can read this token: chmod 600 {path}")
        token = file.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isalnum():
        raise ConfigError(
            f"{path}: a token has at least {_SHORTEST_TOKEN} letters and digits; remove the file to get a new token"
        )
    return token


def _create_token(path: Path) -> str:
    token = secrets.token_hex(24)
    try:
        make_folders(path.parent)
        create_file(path, f"{token}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the token: {error.strerror}") from error
    return token
