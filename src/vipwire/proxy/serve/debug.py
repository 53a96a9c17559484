"""Pages below /debug, with `--profiling`: where the process is, what takes its time, how much it logs."""

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Final

from vipwire.http.server import Pages, Reply, Request
from vipwire.model.number import whole_number

_LONGEST_PROFILE: Final = 60.0
_MOST_VERBOSE: Final = 2**31 - 1  # as the flag
_HEADERS: Final = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}


def add_debug_pages(app: Pages, set_verbosity: Callable[[int], None] | None) -> None:
    """Add /debug/stacks, /debug/profile?seconds=N and, where the log level can be changed, PUT /debug/flags/v."""

    async def verbosity(request: Request) -> Reply:
        text = request.text.strip()
        level = whole_number(text, 0, _MOST_VERBOSE)
        if level is None or set_verbosity is None:
            return _text(f"failed to set v to {text!r}: must be a whole number\n", status=400)
        set_verbosity(level)
        return _text(f"successfully set v to {text}\n")

    app.add("GET", "/debug/stacks", _stacks)
    app.add("GET", "/debug/profile", _profile)
    if set_verbosity is not None:
        app.add("PUT", "/debug/flags/v", verbosity)


async def _stacks(_request: Request) -> Reply:
    return _text("".join((*_thread_stacks(), *_task_stacks())))


def _thread_stacks() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001  # the documented way to see other threads
        yield f"thread {names.get(ident, '?')} ({ident}):\n{''.join(traceback.format_stack(frame))}\n"


def _task_stacks() -> Iterator[str]:
    for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
        out = io.StringIO()
        task.print_stack(file=out)
        yield f"task {task.get_name()}:\n{out.getvalue()}\n"


async def _profile(request: Request) -> Reply:
    """Profile the event loop's thread for some seconds, functions with the most time of their own first."""
    try:
        seconds = float(request.query.get("seconds", "5"))
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= _LONGEST_PROFILE:
        return _text(f"seconds must be a number above 0 and at most {_LONGEST_PROFILE:g}\n", status=400)
    import cProfile  # noqa: PLC0415  # heavy, and few ask
    import pstats  # noqa: PLC0415

    profile = cProfile.Profile()
    try:
        profile.enable()
    except ValueError:
        return _text("another profile is being taken\n", status=409)
    try:
        await asyncio.sleep(seconds)
    finally:
        profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(50)
    return _text(out.getvalue())


def _text(body: str, status: int = 200) -> Reply:
    return Reply(body, status, _HEADERS)
