"""Decides which process holds the name of a Node: the one that renews the Lease of that name.

    kube-node-lease/NODE               each machine, of `vipwire up` or `vipwire join` (heartbeat.py)
    kube-system/vipwire-server-NODE    an API server among others (controllers/servers.py)

A process is known by its credentials, its boot and its network namespace: one that is started again in the same place
has the name at once. Any other one waits. If the Lease is renewed meanwhile, its holder is alive, and the name is
taken: NameTakenError ends the newcomer. If the Lease stays the same for its duration, the newcomer takes the name.
The earlier holder, if it comes back, has held the name until its own Lease was over, and is a newcomer then. While
the store is full no process can renew or take a name: a holder reads its Lease instead.
"""

import time
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from vipwire.errors import VipwireError
from vipwire.kube.lease import Lease, duration_of, holder_of, new_lease, with_holder

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE: Final = Path("/proc/self/ns/net")


class NameTakenError(VipwireError):
    """Another machine or API server that is alive holds the name."""


class NameAwaitedError(VipwireError):
    """Another one has held the name, and may still be alive."""


def boot_seconds() -> float:
    """Return seconds of a clock that never goes back, and goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def identity_here(node: str, own: bytes) -> str:
    """Name the process that has something of its `own`, such as a key, in this boot and network namespace.

    A copy of a machine's disk has the same key, but not the same boot. Raise OSError without /proc.
    """
    place = b" ".join((own, _BOOT.read_bytes(), str(_NAMESPACE.stat().st_ino).encode()))
    return f"{node}_{uuid.uuid5(uuid.NAMESPACE_OID, place.hex())}"


class NameClaim:
    """One process's claim to the name of a Node, as a `kind` of program. `clock` goes on while the machine sleeps."""

    def __init__(
        self,
        node: str,
        seconds: int,
        identity: str = "",
        *,
        kind: str = "machine",
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self.node, self.identity, self.seconds = node, identity or node, seconds
        self._kind, self._clock = kind, clock
        self._until = float("-inf")
        self._over = frozenset[str]()
        self._rival: tuple[str, float] | None = None
        """The state of another one's Lease that was seen first, by its version, and when."""

    def succeed(self, earlier: frozenset[str]) -> None:
        """Wait for none of these processes: they are known to hold the name no more."""
        self._over = earlier

    def holds(self) -> bool:
        """Report whether no other process can have the name now."""
        return self._clock() < self._until

    def wait(self, lease: Lease, *, over: bool = False) -> float:
        """Return in how many seconds the name may be taken; raise NameTakenError if its holder is alive.

        `over`: somebody who has watched this state of the Lease all the time says that it is over.
        """
        nobody = "", self.identity, self.node, *self._over  # earlier versions wrote the Node's name
        if over or holder_of(lease) in nobody:
            self._rival = None
            return 0.0
        self._until = float("-inf")
        now, version = self._clock(), str(lease["metadata"].get("resourceVersion"))
        seen, since = self._rival = self._rival or (version, now)
        if seen != version:
            why = "choose another --node-name, or let that one leave (vipwire leave)"
            raise NameTakenError(f"another {self._kind} that is alive is Node {self.node}: {why}")
        return max(since + duration_of(lease, self.seconds) - now, 0.0)

    def renewed(self, lease: Lease, now: datetime, *, over: bool = False) -> Lease:
        """Write the Lease that this process acquires or renews. Raise NameTakenError, NameAwaitedError."""
        if self.wait(lease, over=over):
            raise NameAwaitedError(f"another {self._kind} has been Node {self.node} until now: waiting for its end")
        return with_holder(lease, self.identity, self.seconds, now)

    def created(self, name: str, now: datetime) -> Lease:
        """Write a Lease that is not there."""
        return new_lease(name, self.identity, self.seconds, now)

    def keep(self, lease: Lease | None, began: float) -> None:
        """Judge a Lease that was read, from then on, while the store takes no writes of anybody.

        If it is this process's, the name stays: nobody else can take it. Another one's counts from now.
        """
        self._rival = None
        if lease is not None and holder_of(lease) == self.identity:
            self.confirm(began)

    def began(self) -> float:
        """Return the time that a write is to be `confirmed` with."""
        return self._clock()

    def confirm(self, began: float) -> None:
        """Hold the name from a write on, which began then and was acknowledged."""
        self._rival, self._until = None, began + self.seconds
