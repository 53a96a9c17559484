"""Decides which process holds the name of a Node: the one that renews the Lease of that name.

    kube-node-lease/NODE               each machine, of `vipwire up` or `vipwire join` (heartbeat.py)
    kube-system/vipwire-server-NODE    an API server among others (controllers/servers.py)

A process is identified by its credentials, its boot and its network namespace: a restarted process in the same place
has the name at once. Any other process waits for the Lease's duration. If the Lease is renewed meanwhile, its holder
is alive, and NameTakenError ends the newcomer; if not, the newcomer takes the name. While the store is full no
process can renew or take a name: a holder reads its Lease instead.
"""

import re
import time
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from vipwire.errors import VipwireError
from vipwire.file_io.files import read_boot_id, read_netns_inode
from vipwire.file_io.private_files import write_private
from vipwire.kube.errors import ApiError
from vipwire.kube.lease import Lease, build_lease, find_duration, find_holder, set_holder
from vipwire.logging import log
from vipwire_up.api.kinds.small_kinds import LEASES
from vipwire_up.api.objects.errors import is_store_full
from vipwire_up.nodes.objects import Objects

SERVER_FILE: Final = "server-id"
_FORM: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class NameTakenError(VipwireError):
    """Another machine or API server that is alive holds the name."""


class NameStillHeldError(VipwireError):
    """Another process held the name, and may still be alive."""


def seconds_since_boot() -> float:
    """Return the seconds of a clock that never goes back, and runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_identity(node: str, own: bytes) -> str:
    """Return the identity of a process by its `own` bytes, such as a key, its boot and its network namespace.

    A copy of a machine's disk has the same key, but not the same boot. Raise OSError without /proc.
    """
    place = b" ".join((own, read_boot_id().encode(), str(read_netns_inode()).encode()))
    return f"{node}_{uuid.uuid5(uuid.NAMESPACE_OID, place.hex())}"


def server_identity(folder: Path, node: str) -> str:
    """Return the identity of the API server of a data directory, which one process holds; create one if missing.

    A server that replaces a killed one in its place has the same identity: it need not wait until the Lease of its
    former process expires, and the others do not take it for gone.
    """
    path = folder / SERVER_FILE
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not _FORM.fullmatch(found):
        found = str(uuid.uuid4())
        try:
            write_private(path, f"{found}\n".encode())
        except OSError as error:  # the server also works with an identity that its next start does not know
            log.warning("cannot write the name of this server", file=path, error=error)
    return process_identity(node, found.encode())


class NameClaim:
    """A process's claim to a Node's name, as a `kind` of program. `clock` runs while the machine sleeps."""

    def __init__(
        self,
        node: str,
        seconds: int,
        identity: str = "",
        *,
        kind: str = "machine",
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self.node, self.identity, self.seconds = node, identity or node, seconds
        self._kind, self._clock = kind, clock
        self._until = float("-inf")
        self._over = frozenset[str]()
        self._written: Lease | None = None
        """The Lease as this process wrote it last."""
        self._rival: tuple[str, float] | None = None
        """The version of another process's Lease, and when this process saw that version first."""

    def ignore_identities(self, earlier: frozenset[str]) -> None:
        """Do not wait for these identities: they no longer hold the name."""
        self._over = earlier

    def holds_name(self) -> bool:
        return self._clock() < self._until

    def seconds_until_free(self, lease: Lease, *, over: bool = False) -> float:
        """Return the seconds until the name may be taken; raise NameTakenError if its holder is alive.

        `over` means that a caller has watched this version of the Lease for all of its duration.
        """
        nobody = "", self.identity, self.node, *self._over  # earlier versions wrote the Node's name
        if over or find_holder(lease) in nobody:
            self._rival = None
            return 0.0
        self._until = float("-inf")
        now, version = self._clock(), str(lease["metadata"].get("resourceVersion"))
        seen, since = self._rival = self._rival or (version, now)
        if seen != version:
            why = "choose another --node-name, or remove that machine (vipwire leave)"
            raise NameTakenError(f"another running {self._kind} is Node {self.node}: {why}")
        return max(since + find_duration(lease, self.seconds) - now, 0.0)

    async def renew_written(self, objects: Objects, namespace: str, now: datetime) -> bool:
        """Renew the Lease by one request, unless another process has written the Lease since. Raise UnreachableError.

        Report whether that succeeded while this process held the name without a break.
        """
        lease, self._written, began, until = self._written, None, self._clock(), self._until
        if lease is None:
            return False
        try:
            renewed = set_holder(lease, self.identity, self.seconds, now)
            self._written = await objects.replace(LEASES, namespace, renewed)
        except ApiError:
            return False
        self._extend_claim(began)
        return self._clock() < until

    async def renew_lease(
        self,
        objects: Objects,
        namespace: str,
        name: str,
        now: datetime,
        *,
        metadata: Mapping[str, Any] = MappingProxyType({}),
        over: Callable[[Lease], bool] = lambda _: False,
    ) -> None:
        """Acquire or renew the Lease; create a missing Lease with `metadata`. `over`: see `seconds_until_free`.

        While the store is full, only read the Lease. Raise ApiError, UnreachableError, NameStillHeldError,
        NameTakenError.
        """

        def renewed(lease: Lease) -> Lease:
            if self.seconds_until_free(lease, over=over(lease)):
                why = f"another {self._kind} was Node {self.node} until now"
                raise NameStillHeldError(f"{why}: vipwire waits until the other one stops")
            return set_holder(lease, self.identity, self.seconds, now)

        began = self._clock()
        try:
            self._written = await objects.edit(LEASES, namespace, name, renewed)
        except ApiError as error:
            if is_store_full(error):
                self._record_lease(await objects.read_newest(LEASES, namespace, name), began)
            if error.code != 404:
                raise
            lease = build_lease(name, self.identity, self.seconds, now)
            lease["metadata"] |= metadata
            self._written = await objects.create(LEASES, namespace, lease)
        self._extend_claim(began)

    def _record_lease(self, lease: Lease | None, began: float) -> None:
        """Keep the name if the read Lease is this process's; another one's duration counts from now."""
        self._rival = None
        if lease is not None and find_holder(lease) == self.identity:
            self._extend_claim(began)

    def _extend_claim(self, began: float) -> None:
        """Hold the name from the time at which a write or reading began."""
        self._rival, self._until = None, began + self.seconds
