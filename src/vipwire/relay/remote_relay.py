"""The relay as the backend sees it: started when it is needed, told what to listen for, asked what it knows."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, TypeVar

from vipwire.errors import CommitError, DecodeError
from vipwire.model.net import Address, Protocol
from vipwire.relay.control_client import Call
from vipwire.relay.messages import (
    Answer,
    AskCounters,
    AskNotes,
    Done,
    Hello,
    Listener,
    Notes,
    Observe,
    Observed,
    Opened,
    Put,
    Refused,
    RelayCounters,
    Remove,
    Request,
    Retire,
    Settings,
    Welcome,
)

_BATCH: Final = 256
T = TypeVar("T", bound=Answer)


class Remote:
    """A relay, by its name (`relay_name`), seen from the process that controls it.

    With `starts` it is started if none runs; otherwise none is seen. `ports` are those of each listener, as last
    seen or told. Every method raises OSError if the relay is lost; the next one looks for it anew.
    """

    def __init__(self, name: str, settings: Settings, *, starts: bool) -> None:
        self._name, self._settings, self._starts = name, settings, starts
        self._call: Call | None = None
        self.ports: dict[str, list[int]] = {}

    def close(self) -> None:
        """Hang up; the relay goes on."""
        if self._call is not None:
            self._call.close()
            self._call = None

    def listeners(self) -> dict[str, Listener]:
        """Ask for all listeners."""
        self.ports = {}
        if self._call is not None and not self.alive():
            self.close()  # it has ended since; there may be another by now
        if self._call is None and not self._find():
            return {}
        observed = self._ask(Observe(), Observed)
        self.ports = observed.ports
        return observed.listeners

    def fronts(self, listeners: Mapping[str, Listener]) -> dict[tuple[str, int], str]:
        """Name the listener at each port of a protocol, as far as rules lead there."""
        return {
            (Protocol(listener.protocol).label, port): key
            for key, listener in listeners.items()
            for place, port in zip(listener.binds, self.ports.get(key, ()), strict=False)
            if not place.port
        }

    def places(self, listeners: Mapping[str, Listener], protocol: Protocol) -> frozenset[tuple[Address, int]]:
        """Return at which addresses and ports the listeners of a protocol are."""
        return frozenset(
            (Address(place.address), port)
            for key, listener in listeners.items()
            for place, port in zip(listener.binds, self.ports.get(key, ()), strict=False)
            if listener.protocol == protocol
        )

    def put(
        self, wanted: Mapping[str, Listener], before: Mapping[str, Listener], instead: Iterable[str] = ()
    ) -> None:
        """Open listeners and close those in `instead`; `before` are the old values of all that are there now.

        Raise CommitError if one cannot be: then everything is as it was.
        """
        ending = list(instead)
        rest = iter(sorted(wanted.items(), key=lambda item: not _is_fixed(item[1])))
        done: list[str] = []
        # Those that may take the place of another come with it, first.
        most = max(_BATCH, sum(map(_is_fixed, wanted.values())) if ending else 0)
        batch = dict(islice(rest, most))
        while batch or ending:
            answer = self._report(Put(batch, ending))
            if isinstance(answer, Opened):
                self.ports.update(answer.ports)
                done += [*batch, *ending]
                for key in ending:
                    self.ports.pop(key, None)
                ending, batch = [], dict(islice(rest, _BATCH))
                continue
            self.undo(done, before)
            if isinstance(answer, Refused):
                raise CommitError(answer.why, errno=answer.errno)
            raise CommitError(f"the relay answered {answer}")

    def undo(self, keys: Iterable[str], before: Mapping[str, Listener]) -> None:
        """Undo what was put."""
        keys = tuple(keys)
        self.remove(key for key in keys if key not in before)
        if changed := {key: before[key] for key in keys if key in before}:
            answer = self._report(Put(changed))
            if isinstance(answer, Opened):
                self.ports.update(answer.ports)

    def remove(self, keys: Iterable[str]) -> None:
        """Close these listeners."""
        if gone := list(keys):
            self._ask(Remove(gone), Done)
            for key in gone:
                self.ports.pop(key, None)

    def alive(self) -> bool:
        """Report whether the relay that was last spoken to answers."""
        if self._call is None:
            return False
        try:
            self._ask(Hello(), Welcome)
        except OSError:
            return False
        return True

    def notes(self) -> list[tuple[str, int]]:
        """Ask for what an operator should know: (text, how often)."""
        return [] if self._call is None else self._ask(AskNotes(), Notes).notes

    def counters(self) -> RelayCounters:
        """Ask for what it has counted."""
        return self._ask(AskCounters(), RelayCounters)

    def retire(self) -> bool:
        """End the relay when its last connection ends; tell whether there was a relay."""
        if self._call is None and not self._find(starts=False):
            return False
        self._ask(Retire(), Done)
        self.close()
        self.ports = {}
        return True

    def _find(self, *, starts: bool = True) -> bool:
        if self._starts and starts:
            self._call = Call.start(self._name, self._settings)
        else:
            self._call = Call.find(self._name)
        return self._call is not None

    def _ask(self, request: Request, expected: type[T]) -> T:
        answer = self._report(request)
        if not isinstance(answer, expected):
            raise OSError(f"the relay answered {answer} where {expected.__name__} was expected")
        return answer

    def _report(self, request: Request) -> Answer:
        if self._call is None and not self._find():
            raise ConnectionRefusedError("there is no relay")
        call = self._call
        assert call is not None  # noqa: S101 - just found
        try:
            return call.tell(request)
        except (OSError, DecodeError) as error:
            self.close()
            raise OSError(f"the relay does not answer: {error}") from error


def _is_fixed(listener: Listener) -> bool:
    """Report whether a listener wants certain ports."""
    return any(place.port for place in listener.binds)


def ask_counts(name: str) -> RelayCounters | None:
    """Ask a relay for its counters, over a connection of its own; None if there is none."""
    call = Call.find(name)
    if call is None:
        return None
    try:
        return call.ask(AskCounters(), RelayCounters)
    finally:
        call.close()
