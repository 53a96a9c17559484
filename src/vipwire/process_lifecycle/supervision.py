"""Parts that run side by side in one process: no part ends another.

A failed part runs again after a second at first, after a minute at most. A part that opens something the operator
configured (a port, an interface) calls `begun` when that is open. A VipwireError before that stops vipwire with a
message for the operator; a later one is a failure of the part.
"""

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Mapping
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from vipwire.errors import told_plainly
from vipwire.logging import log

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
SOUND_SECONDS: Final = 10.0
"""Seconds after which a running part has recovered."""

Begun: TypeAlias = Callable[[], None]
Work: TypeAlias = Callable[[Begun], Awaitable[None]]


class Witness(Protocol):
    """Called at each failure with the part, the object ("" for the part itself), and whether the error repeats."""

    def __call__(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        """Note a failure."""


def ignore_failure(part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
    """Ignore a failure."""


class _Part(Struct):
    begun: bool
    first_pause: float
    pause: float
    trouble: str = ""

    def begin(self) -> None:
        self.begun = True

    def recover(self) -> None:
        self.trouble, self.pause = "", self.first_pause


class Supervisor:
    """Runs parts, and counts failures by part."""

    def __init__(
        self,
        witness: Witness = ignore_failure,
        *,
        sound_after: float = SOUND_SECONDS,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._witness, self._sound_after, self._first_pause = witness, sound_after, first_pause
        self._parts: dict[str, _Part] = {}
        self.failures: Counter[str] = Counter()

    def troubles(self) -> Mapping[str, str]:
        """Return the error of each part that should run; "" for none."""
        return {name: part.trouble for name, part in self._parts.items()}

    def forget(self, name: str) -> None:
        self._parts.pop(name, None)

    async def keep(self, name: str, work: Work, *, opens: bool = False) -> None:
        """Run a part until it returns, again after errors. If it `opens`, raise a VipwireError before `begun`."""
        part = self._parts[name] = _Part(not opens, self._first_pause, self._first_pause)
        self.failures[name] += 0
        while True:
            sound = asyncio.get_running_loop().call_later(self._sound_after, part.recover)
            try:
                await work(part.begin)
            except Exception as error:  # noqa: BLE001  # an error in one part must not stop the others
                if not part.begun and (refusal := told_plainly(error)) is not None:
                    raise refusal from None
                self._record_failure(name, part, error)
            else:
                part.recover()
                return
            finally:
                sound.cancel()
            await asyncio.sleep(part.pause)
            part.pause = min(part.pause * 2, LONGEST_PAUSE)

    def _record_failure(self, name: str, part: _Part, error: Exception) -> None:
        again, part.trouble = part.trouble == shorten_error(error), shorten_error(error)
        log.error(
            "a part of vipwire has failed; restarting the part",
            part=name,
            error=part.trouble,
            again_in_seconds=part.pause,
        )
        self.count_failure(name, "", error, again=again)

    def count_failure(self, part: str, thing: Hashable, error: Exception, *, again: bool) -> None:
        self.failures[part] += 1
        self._witness(part, thing, error, again=again)


def shorten_error(error: BaseException) -> str:
    """Write an error in one line: vipwire's own text, else the kind of the error and its place in the code."""
    plain = told_plainly(error)
    if plain is not None:
        return str(plain)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    text = f"{type(error).__name__}: {error}{where}"[:400]
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
