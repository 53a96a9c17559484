"""The relay's event loop: one epoll, and timers of fixed delays.

asyncio would take three times the processor time (docs/modes/userspace.md). Sockets are registered once,
edge-triggered: a handler reads until EAGAIN, or until its turn is over; then the loop calls it again after all
others. Each queue of timers has one delay, so that a new timer costs one append.
"""

import select
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final, Protocol

MOST_EVENTS: Final = 256


class Handler(Protocol):
    """Handles the events of a descriptor."""

    def ready(self, fd: int, mask: int) -> None:
        """Handle events (a mask of select.EPOLL…) of one descriptor."""


class Closable(Protocol):
    """A socket that the loop can close."""

    def close(self) -> None: ...


class TimerQueue:
    """Timers with one delay, in seconds. After its delay each item is passed to `due`."""

    def __init__(self, seconds: float, due: Callable[[Any], None]) -> None:
        self.seconds, self.due = seconds, due
        self.items: deque[tuple[float, Any]] = deque()


class EventLoop:
    """Waits for events and calls handlers. `now` is the monotonic time of the current round."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._timers: list[TimerQueue] = []
        self._again: deque[Callable[[], None]] = deque()
        self._closing: list[Closable] = []
        self.now = time.monotonic()
        self.stopped = False
        self.notes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._handlers)

    def list_handlers(self) -> list[Handler]:
        return list(dict.fromkeys(self._handlers.values()))

    def add(self, fd: int, handler: Handler, mask: int) -> None:
        self._handlers[fd] = handler
        self._epoll.register(fd, mask)

    def change(self, fd: int, mask: int) -> None:
        """Change the events of a descriptor; epoll reports those that are already true again."""
        self._epoll.modify(fd, mask)

    def forget(self, fd: int, socket: Closable) -> None:
        """Unregister a descriptor, and close its socket after this round.

        Not at once: a new socket could get the number, and with it the events of this round.
        """
        self._handlers.pop(fd, None)
        self._closing.append(socket)

    def remove_descriptor(self, fd: int, socket: Closable) -> None:
        """Unregister a descriptor whose socket has duplicates, which epoll would otherwise continue to report."""
        self._epoll.unregister(fd)
        self.forget(fd, socket)

    def add_timer_queue(self, seconds: float, due: Callable[[Any], None]) -> TimerQueue:
        made = TimerQueue(seconds, due)
        self._timers.append(made)
        return made

    def schedule(self, queue: TimerQueue, item: Any) -> None:
        """Start a timer: after the queue's delay, its `due` gets the item."""
        queue.items.append((self.now + queue.seconds, item))

    def call_again(self, call: Callable[[], None]) -> None:
        self._again.append(call)

    def note(self, text: str) -> None:
        """Count a note for the operator, who gets its text and number."""
        if text in self.notes or len(self.notes) < MOST_EVENTS:
            self.notes[text] += 1

    def run(self) -> None:
        while not self.stopped:
            self.run_round(None)

    def run_round(self, most: float | None) -> None:
        """Wait for events, at most `most` seconds, and handle them."""
        events = self._epoll.poll(self._compute_timeout(most), MOST_EVENTS)
        self.now = time.monotonic()
        handlers = self._handlers
        for fd, mask in events:
            handler = handlers.get(fd)
            if handler is not None:
                try:
                    handler.ready(fd, mask)
                except Exception:  # noqa: BLE001 - an error in one connection must not stop the others
                    self._record_fault()
                    self._handlers.pop(fd, None)
                    self._epoll.unregister(fd)
        self._take_turns()
        self._run_due_timers()
        for socket in self._closing:
            socket.close()
        self._closing.clear()

    def close(self) -> None:
        """Close the epoll; handlers close their sockets."""
        self._epoll.close()

    def _compute_timeout(self, most: float | None) -> float | None:
        if self._again:
            return 0
        deadlines = [queue.items[0][0] for queue in self._timers if queue.items]
        if not deadlines:
            return most
        wait = max(0.0, min(deadlines) - time.monotonic())
        return wait if most is None else min(wait, most)

    def _take_turns(self) -> None:
        for _ in range(len(self._again)):
            call = self._again.popleft()
            try:
                call()
            except Exception:  # noqa: BLE001 - as above
                self._record_fault()

    def _run_due_timers(self) -> None:
        for queue in self._timers:
            items = queue.items
            while items and items[0][0] <= self.now:
                _, item = items.popleft()
                try:
                    queue.due(item)
                except Exception:  # noqa: BLE001 - as above
                    self._record_fault()

    def _record_fault(self) -> None:
        self.note(f"error in the relay: {traceback.format_exc()}")
