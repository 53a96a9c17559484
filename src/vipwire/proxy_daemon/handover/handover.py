"""Changing the mode: the mode that runs is in force before what another has left goes, and no connection is lost.

    first sync of every family  ▸  leftovers of others go (`leftovers`)  ▸  what is still in use goes when it is idle

While both are in force each new connection is translated once, by whichever the kernel asks first; both know the same
endpoints, and the mark for masquerading is the same. Established connections are the kernel's (connection tracking),
a relay's or IPVS's: no rule decides about them again.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vipwire.errors import VipwireError
from vipwire.linux.host.rights import capabilities
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.registry import driver_of
from vipwire.modes.spec import ModeSpec
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.reconcile.backend import Backend

if TYPE_CHECKING:
    from vipwire.proxy_daemon.handover.leftovers import LeftoverRemovals, Leftovers, Removed

_LOOK_SECONDS: Final = 0.1
"""How often it is asked whether the first sync is done."""
_WAIT_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0


class Handover:
    """Removes what other modes have left, once the mode that runs has done its first sync. `backends` are its own."""

    def __init__(self, mode: ModeSpec, backends: Mapping[Family, object], metrics: Metrics) -> None:
        self._mode, self._backends, self._metrics = mode, backends, metrics
        self._told: set[Removed] = set()

    async def run(self, synced: Callable[[], bool]) -> None:
        """Wait until `synced`; then remove, and look again until nothing is left."""
        while not synced():  # noqa: ASYNC110  # asked for seconds, once in the life of a process
            await asyncio.sleep(_LOOK_SECONDS)
        from vipwire.proxy_daemon.handover.leftovers import Leftovers  # noqa: PLC0415  # the first sync needs it not

        leftovers = Leftovers(self._mode, self._backends)
        if not leftovers.writes_rules and "CAP_NET_ADMIN" not in capabilities():
            log.info("not looking for what other modes left", reason="that needs CAP_NET_ADMIN")
            return
        while (again := await self._sweep(leftovers)) is not None:  # noqa: ASYNC110  # the kernel tells nobody of idleness
            await asyncio.sleep(again)
        log.info("other modes have left nothing", mode=self._mode.name)

    async def _sweep(self, leftovers: "Leftovers") -> float | None:
        """Remove what can go; return in how many seconds to look again, None if nothing is left."""
        try:
            result = await asyncio.to_thread(leftovers.sweep)
        except (VipwireError, OSError) as error:
            log.warning("cannot remove what another mode left; trying again", reason=error)
            return _RETRY_SECONDS
        self._report(result)
        return _WAIT_SECONDS if result.waiting else None

    def _report(self, result: "LeftoverRemovals") -> None:
        for each in result.removed:
            self._metrics.leftovers_removed_total.labels(mode=each.mode, ip_family=each.family.value).inc()
            log.info("removed what another mode left", left_by=each.mode, **_fields(each))
        for each in _new(result.waiting, self._told):
            log.info("keeping what another mode left until it is idle", left_by=each.mode, **_fields(each))
        self._told.update(result.waiting)


class OtherModes:
    """The modes other than the one that arrives, on one node and for one family."""

    def __init__(self, arriving: ModeSpec, family: Family) -> None:
        self._arriving, self._family = arriving, family

    def translating(self) -> frozenset[ModeSpec]:
        """Find those that translate now. Raise CommitError or OSError if nobody can tell."""
        from vipwire.proxy_daemon.handover.leftovers import translating  # noqa: PLC0415  # not every mode asks

        return translating(self._arriving, self._family)

    def disarm(self) -> None:
        """Remove what drops whatever is not translated in its own way."""
        from vipwire.proxy_daemon.handover.leftovers import disarm, engines  # noqa: PLC0415  # see translating

        for tool in engines(self._family):
            disarm(tool)


def with_first_commit(mode: ModeSpec, family: Family, backend: Backend[Any, Any]) -> Backend[Any, Any]:
    """Return the backend to commit to: itself, or one whose first commit leaves no gap beside another mode."""
    return driver_of(mode).before_first_commit(backend, OtherModes(mode, family))


def _fields(each: "Removed") -> dict[str, object]:
    return {"ip_family": each.family.value, "what": each.what}


def _new(found: "Iterable[Removed]", told: "set[Removed]") -> "list[Removed]":
    """Leave out what differs from something told in its numbers only."""
    known = {(each.mode, each.family) for each in told}
    return [each for each in found if (each.mode, each.family) not in known]


def reexec() -> None:
    """Replace this process by one that was started with the same words, and reads the configuration as it is now.

    The process id stays: whoever supervises us sees no end. Python's sockets close by themselves (PEP 446); a SIGHUP
    that comes before the new program listens to it would end it, so it is ignored until then. Does not return.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # the same program with the same words
