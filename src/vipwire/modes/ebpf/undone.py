"""What could not be written into maps, and when that is tried again: after 0.1 s, then twice as long each time. Pure.

Meanwhile the rules serve it. Objects are noted as they should be, so that a try is right whatever was done before.
"""

from dataclasses import dataclass, field
from typing import Final

from vipwire.modes.ebpf.names import OurKey
from vipwire.reconcile.delta import Delta

_FIRST: Final = 0.1
LONGEST: Final = 30.0
_DOUBLINGS: Final = 10


@dataclass(slots=True)
class Undone:
    """The objects by key; None for one that should not be there. `reason` is why the last try failed."""

    objects: dict[OurKey, bytes | None] = field(default_factory=dict)
    reason: str = ""
    _tries: int = 0
    _at: float = 0.0

    def failed(self, delta: Delta[OurKey, bytes], reason: str, now: float) -> bool:
        """Note what was not done; tell whether that, or why, is news."""
        news = not self.objects or reason != self.reason
        self.objects.update(_wanted(delta))
        self._at = now + min(_FIRST * 2 ** min(self._tries, _DOUBLINGS), LONGEST)
        self._tries, self.reason = self._tries + 1, reason
        return news

    def done(self, delta: Delta[OurKey, bytes]) -> bool:
        """Note what was done; tell whether nothing is left of what there was."""
        if not self.objects:
            return False
        for key in _wanted(delta):
            self.objects.pop(key, None)
        if self.objects:
            return False
        self._tries, self.reason = 0, ""
        return True

    def due(self, now: float) -> float | None:
        """Return the seconds until the next try; None if there is nothing to try."""
        return max(0.0, self._at - now) if self.objects else None

    def delta(self) -> Delta[OurKey, bytes]:
        """Return what is to be written."""
        return Delta(
            added={key: value for key, value in self.objects.items() if value is not None},
            removed={key: b"" for key, value in self.objects.items() if value is None},
        )


def _wanted(delta: Delta[OurKey, bytes]) -> dict[OurKey, bytes | None]:
    changed = {key: new for key, (_, new) in delta.changed.items()}
    return {**delta.added, **changed, **dict.fromkeys(delta.removed)}
