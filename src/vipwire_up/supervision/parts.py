"""Starts the parts of a process, each supervised by itself, and knows when those that open something have done so."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from vipwire.errors import told_plainly
from vipwire.process.supervision import Begun, Supervisor, Work


@dataclass(frozen=True, slots=True)
class Part:
    """A part that runs beside others. One that `opens` something stops the start if it cannot."""

    name: str
    work: Work
    opens: bool = False


class Parts:
    """The parts that run; `working` are their tasks, to be cancelled at the end."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.working: list[asyncio.Task[None]] = []

    def start(self, tasks: asyncio.TaskGroup, part: Part) -> asyncio.Event:
        """Run a part; what is given is set when it has opened what it opens, or failed to for a reason of ours."""
        tried = asyncio.Event()

        async def work(begun: Begun) -> None:
            def opened() -> None:
                begun()
                tried.set()

            if not part.opens:
                tried.set()
            try:
                await part.work(opened)
            except Exception as error:
                if told_plainly(error) is None:  # else it may be a refusal to start: nothing is ready then
                    tried.set()
                raise
            tried.set()

        self.working.append(tasks.create_task(self._supervisor.keep(part.name, work, opens=part.opens)))
        return tried


def simply(run: Callable[[], Awaitable[None]]) -> Work:
    """Wrap what opens nothing as a part."""
    return lambda _: run()
