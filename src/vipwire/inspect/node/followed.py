"""The objects of a command that follows connections: read in a thread, planned again after each change.

The command itself waits for the kernel's notifications, and takes the newest plan from here.
"""

import threading
import time
from typing import Any, Final, Self

from vipwire.config.configuration import Config
from vipwire.errors import VipwireError
from vipwire.inspect.node.flows import Frontends
from vipwire.inspect.node.silence import OBJECTS, Silences
from vipwire.inspect.node.situation import Situation, plan_situation
from vipwire.inspect.node.source import follow_source, make_source, warn_of_files
from vipwire.watched_objects.store import Store

_STEP_SECONDS: Final = 1.0
_SHARE: Final = 5
"""After a plan, the next plan waits for this many times the duration of the first."""


class Followed:
    """Enter it to read all objects once: raises ConfigError if the source does not answer."""

    situation: Situation
    frontends: Frontends

    def __init__(self, config: Config) -> None:
        self._config, self._source = config, make_source(config)
        self._first, self._silences = threading.Event(), Silences()
        self._error: Exception | None = None
        self._due = 0.0

    def __enter__(self) -> Self:
        threading.Thread(target=self._follow_until_stopped, name="objects", daemon=True).start()
        self._first.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *error: object) -> None:
        """The thread ends with the process."""

    def silent(self) -> list[dict[str, Any]]:
        now = time.time()
        if self._error is None:
            self._silences.record_source_error(self._source, now)
        else:
            self._silences.record_error(OBJECTS, str(self._error), now)
        self._silences.record_proxy_silence(self._config, now)
        return self._silences.documents()

    def _follow_until_stopped(self) -> None:
        try:
            follow_source(self._source, self._follow_once, _STEP_SECONDS)
        except (VipwireError, OSError) as error:
            self._error = error
        finally:
            self._first.set()

    def _follow_once(self, store: Store) -> None:
        began = time.monotonic()
        changed = store.dirty or store.node_changed
        if self._first.is_set() and (not changed or began < self._due):
            return
        store.take_touched()
        store.node_changed = False
        self.situation = plan_situation(self._config, store)
        self.frontends = Frontends.of(self.situation)
        self._due = time.monotonic() + _SHARE * (time.monotonic() - began)
        if not self._first.is_set():
            warn_of_files(store)
            self._first.set()
