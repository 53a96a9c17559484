"""The drained endpoints of this node: a file that `vipwire drain` writes and the proxy follows.

The file outlives a restart of the proxy, but not a reboot: it lies in /run. Its name contains the node's name,
because a lab runs several nodes on one machine. Its times are of the clock for people; it also has the boot's time by
the same clock, so that a drain of 30 minutes takes as long if the clock jumps meanwhile.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Struct

from vipwire.errors import ConfigError
from vipwire.file_io.file_watch import FileWatch
from vipwire.file_io.files import hold_lock, make_folders, read_boot_id, replace_file
from vipwire.logging import log
from vipwire.model.names import ObjectName
from vipwire.model.net import format_address, parse_address
from vipwire.model.node import Drain

_VERSION: Final = 1


class DrainOrder(NamedTuple):
    """An endpoint to drain, with start and end in seconds since the boot (None: until `drain --undo`)."""

    drain: Drain
    since: float
    until: float | None = None


class _Row(Struct):
    address: str
    port: int | None
    service: str | None
    since: float
    until: float | None


class _Document(Struct):
    version: int
    drained: tuple[_Row, ...]
    boot: str = ""
    booted: float = 0.0


def seconds_since_boot() -> float:
    """Return the time that orders are in; the machine's sleep counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_time() -> float:
    """Return the boot's time in seconds since the epoch, by the clock as it is now."""
    return time.time() - seconds_since_boot()


def drains_path(state_dir: str, node_name: str) -> Path:
    return Path(state_dir) / f"drained-{quote(node_name, safe='')}.json"


def read_orders(path: Path) -> tuple[DrainOrder, ...]:
    """Read a file's orders, () if it does not exist. Raise ConfigError that names file and mistake."""
    try:
        return parse_orders(path.read_bytes(), path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the list of drained endpoints: {error.strerror}") from error


def parse_orders(content: bytes, path: Path) -> tuple[DrainOrder, ...]:
    """Parse the content of a file; errors name `path`. Raise ConfigError."""
    try:
        document = msgspec.json.decode(content, type=_Document)
        _check_version(document)
        booted = document.booted if document.boot == read_boot_id() else boot_time()
        return tuple(_parse_order(row, booted) for row in document.drained)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path}: not a list of drained endpoints ({error}); to begin with an empty list, remove the file"
        ) from error


def _check_version(document: _Document) -> None:
    if document.version != _VERSION:
        raise ValueError(f"version {document.version} is not {_VERSION}")


def _parse_order(row: _Row, booted: float) -> DrainOrder:
    namespace, slash, name = (row.service or "").partition("/")
    service = ObjectName(namespace, name) if slash else None
    until = None if row.until is None else round(row.until - booted, 3)
    return DrainOrder(Drain(parse_address(row.address), row.port, service), round(row.since - booted, 3), until)


def change_orders(
    path: Path, change: Callable[[tuple[DrainOrder, ...]], Iterable[DrainOrder]]
) -> tuple[DrainOrder, ...]:
    """Apply `change` to the orders, replace the file atomically, return the new orders.

    Raise OSError, ConfigError.
    """
    make_folders(path.parent)
    lock = path.with_suffix(".lock")
    with hold_lock(os.open(lock, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)):
        orders = tuple(change(read_orders(path)))
        booted = boot_time()
        document = _Document(_VERSION, tuple(_build_row(order, booted) for order in orders), read_boot_id(), booted)
        replace_file(path, msgspec.json.format(msgspec.json.encode(document), indent=1))
    return orders


def _build_row(order: DrainOrder, booted: float) -> _Row:
    drain = order.drain
    service = None if drain.service is None else str(drain.service)
    until = None if order.until is None else order.until + booted
    return _Row(format_address(drain.address), drain.port, service, order.since + booted, until)


def select_in_force(orders: Iterable[DrainOrder], now: float) -> frozenset[Drain]:
    return frozenset(order.drain for order in orders if order.until is None or now < order.until)


def next_end(orders: Iterable[DrainOrder], now: float) -> float | None:
    """Return the seconds until the next drain ends; None if no drain has an end."""
    return min((order.until - now for order in orders if order.until is not None and now < order.until), default=None)


class DrainFollower:
    """Keeps the set of drained endpoints, read before the first sync: no connection reaches a drained one."""

    def __init__(self, path: Path, files: FileWatch, count: Callable[[int], object]) -> None:
        """`count` receives the number of drained endpoints, for the metrics."""
        self._path, self._files, self._count = path, files, count
        self._orders: tuple[DrainOrder, ...] = ()
        self._came = asyncio.Event()
        self.drained: frozenset[Drain] = frozenset()
        try:
            self._orders = read_orders(path)
        except ConfigError as error:
            log.error("cannot read the list of drained endpoints; no endpoint is drained", reason=error)
        self._refresh()

    async def run(self, changed: Callable[[], None]) -> None:
        """Follow the file until cancelled; call `changed` when the set of drained endpoints changes."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_orders(), name="drained endpoints")
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(next_end(self._orders, seconds_since_boot())):
                        await self._came.wait()
                self._came.clear()
                if self._refresh():
                    changed()

    async def _watch_orders(self) -> None:
        async for content in self._files.yield_contents(self._path):
            try:
                self._orders = () if content is None else parse_orders(content, self._path)
            except ConfigError as error:
                log.error("cannot read the list of drained endpoints; keeping the old list", reason=error)
                continue
            self._came.set()

    def _refresh(self) -> bool:
        """Read the drains that apply now; report whether they changed."""
        before, self.drained = self.drained, select_in_force(self._orders, seconds_since_boot())
        self._count(len(self.drained))
        for drain in sorted(self.drained - before, key=str):
            log.info("endpoint drained; no new connections to it", endpoint=drain)
        for drain in sorted(before - self.drained, key=str):
            log.info("endpoint is no longer drained", endpoint=drain)
        return before != self.drained
