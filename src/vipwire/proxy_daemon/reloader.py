"""Reads the configuration again when its file changes and at SIGHUP, and applies it to the running proxy.

Each field states whether a running proxy can change it (`Applied`). Fields that need a restart keep their value; the
others take effect. If the mixture is no valid configuration, no field takes effect before the restart. An invalid
file changes nothing and is logged.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from vipwire.config.configuration import ROWS, Config
from vipwire.config.file import Loaded
from vipwire.config.schema import Applied, replace_at
from vipwire.config.validation import validate
from vipwire.errors import ConfigError
from vipwire.file_io.file_watch import FileWatch
from vipwire.logging import log
from vipwire.proxy_daemon.serve.metrics import Metrics


class ConfigChange(NamedTuple):
    """The effect of a changed file: the configuration to run, the changed fields, the fields that need a restart."""

    config: Config
    live: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def compare_configs(started: Config, running: Config, wanted: Config) -> ConfigChange:
    """Decide which fields of a new configuration a running proxy takes.

    `started` is the configuration at the start, `running` the current one, which a fallback or earlier changes
    altered.
    """
    waiting = _find_changed(started, wanted, Applied.RESTART)
    mixed = running
    for row in _IN_FILE:
        if row.applied is not Applied.RESTART:
            mixed = replace_at(mixed, row.attribute, row.value(wanted))
    mixed = replace(mixed, explicit=wanted.explicit)
    live = _find_changed(running, mixed, Applied.LIVE)
    if waiting and validate(mixed):
        return ConfigChange(running, (), tuple(sorted((*live, *waiting))))
    return ConfigChange(mixed, live, waiting)


_IN_FILE = tuple(row for row in ROWS.values() if row.in_file)


def _find_changed(before: Config, after: Config, applied: Applied) -> tuple[str, ...]:
    return tuple(row.path for row in _IN_FILE if row.applied is applied and row.value(before) != row.value(after))


Reread = Callable[[], Loaded]
"""Reads the configuration again, from the same flags and the current file. Raises ConfigError."""

Adopt = Callable[[Config, Config], Awaitable[None]]
"""Changes the running proxy from the first configuration to the second."""

ChangeMode = Callable[[Config], Awaitable[bool]]
"""Changes the proxy to a configuration's mode; returns False if the proxy keeps its mode."""


class Reloader:
    """Keeps the running configuration. `started` is the requested one, `running` the effective one."""

    def __init__(self, started: Config, running: Config, reread: Reread, metrics: Metrics, files: FileWatch) -> None:
        self._started, self.running, self._reread = started, running, reread
        self._metrics, self._files = metrics, files
        self._asked = asyncio.Event()
        self._warned: frozenset[str] | None = None  # the start has already logged its warnings
        self._record_reload(good=True)

    def request_reload(self) -> None:
        """Read the file again even if its content looks unchanged."""
        if self._started.config_file:
            self._asked.set()
        else:
            log.info("no configuration file to read again (--config)")

    async def run(self, adopt: Adopt, change_mode: ChangeMode) -> None:
        """Follow the file until cancelled; without a file, only SIGHUP."""
        if not self._started.config_file:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_file(Path(self._started.config_file)), name="configuration file")
            while True:
                await self._asked.wait()
                self._asked.clear()
                await self.reload(adopt, change_mode)

    async def _watch_file(self, path: Path) -> None:
        async for content in self._files.yield_contents(path):
            if content is not None:  # the file may be absent for a moment while an editor replaces it
                self._asked.set()

    async def reload(self, adopt: Adopt, change_mode: ChangeMode) -> None:
        """Read the configuration again and apply the settings that a running proxy can change."""
        try:
            wanted, warnings = await asyncio.to_thread(self._reread)
        except ConfigError as error:
            self._refuse_config(error)
            return
        for warning in warnings:
            if self._warned is not None and warning not in self._warned:
                log.warning(warning)
        self._warned = frozenset(warnings)
        await self._adopt_config(wanted, adopt, change_mode)

    async def _adopt_config(self, wanted: Config, adopt: Adopt, change_mode: ChangeMode) -> None:
        before, change = self.running, compare_configs(self._started, self.running, wanted)
        self.running = change.config
        if change.config != before:
            await adopt(before, change.config)
        self._metrics.config_fields_awaiting_restart.set(len(change.waiting))
        self._record_reload(good=True)
        if change.live:
            log.info("applied the new configuration", fields=",".join(change.live))
        elif not change.waiting:
            log.detail(1, "the configuration has not changed")
        if "mode" in change.waiting and await change_mode(wanted):
            return
        if change.waiting:
            log.warning("part of the new configuration needs a restart", fields=",".join(change.waiting))

    def _refuse_config(self, error: ConfigError) -> None:
        self._record_reload(good=False)
        for line in str(error).splitlines():
            log.error("the configuration is invalid; keeping the old one", reason=line)

    def _record_reload(self, *, good: bool) -> None:
        self._metrics.config_last_reload_successful.set(int(good))
        if good:
            self._metrics.config_last_reload_success_timestamp_seconds.set(time.time())
