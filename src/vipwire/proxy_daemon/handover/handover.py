"""Changes the mode without losing a connection: the new mode's rules are in force before the old mode's go.

    first sync of every family  ▸  remove leftovers of others (`leftovers`)  ▸  remove the rest once it is idle

While both modes are in force, the rules that the kernel evaluates first translate a new connection; both have the
same endpoints and the same masquerade mark. Established connections stay with connection tracking, a relay or IPVS.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from vipwire.errors import VipwireError
from vipwire.linux.host.kernel import read_capabilities
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.registry import load_driver
from vipwire.modes.spec import ModeSpec
from vipwire.proxy_daemon.serve.metrics import Metrics
from vipwire.reconcile.backend import Backend

if TYPE_CHECKING:
    from vipwire.proxy_daemon.handover.leftovers import LeftoverRemovals, Leftovers, Removed

_WAIT_SECONDS: Final = 1.0
_RETRY_SECONDS: Final = 30.0


class Handover:
    """Removes other modes' leftovers after the first sync of the running mode. `backends` are the running mode's.

    Calls `obstructed` with the reason why rules of another mode stay in force, or "".
    """

    def __init__(
        self, mode: ModeSpec, backends: Mapping[Family, object], metrics: Metrics, obstructed: Callable[[str], None]
    ) -> None:
        self._mode, self._backends, self._metrics, self._obstructed = mode, backends, metrics, obstructed
        self._told: set[Removed] = set()

    async def run(self, synced: asyncio.Event) -> None:
        """Wait until `synced`; then remove leftovers until none remain."""
        await synced.wait()
        from vipwire.proxy_daemon.handover.leftovers import Leftovers  # noqa: PLC0415  # the first sync needs it not

        leftovers = Leftovers(self._mode, self._backends)
        if not leftovers.writes_rules and "CAP_NET_ADMIN" not in read_capabilities():
            log.info("not looking for rules of other modes", reason="this needs CAP_NET_ADMIN")
            return
        while (again := await self._remove_leftovers(leftovers)) is not None:  # noqa: ASYNC110  # the kernel does not report idleness
            await asyncio.sleep(again)
        log.info("found no rules of other modes", mode=self._mode.name)

    async def _remove_leftovers(self, leftovers: "Leftovers") -> float | None:
        """Remove idle leftovers; return the seconds until the next look, None if none remain."""
        try:
            result = await asyncio.to_thread(leftovers.remove_leftovers)
        except (VipwireError, OSError) as error:
            log.warning("cannot remove another mode's rules; trying again", reason=error)
            self._obstructed(str(error))
            return _RETRY_SECONDS
        self._report_removals(result)
        self._obstructed("; ".join(each.what for each in result.stuck))
        if result.stuck:
            return _RETRY_SECONDS
        return _WAIT_SECONDS if result.waiting else None

    def _report_removals(self, result: "LeftoverRemovals") -> None:
        for each in result.removed:
            self._metrics.leftovers_removed_total.labels(mode=each.mode, ip_family=each.family.value).inc()
            log.info("removed another mode's rules", left_by=each.mode, **_build_removal_fields(each))
        for each in _select_new_removals(result.waiting, self._told):
            log.info(
                "keeping another mode's rules while connections use them",
                left_by=each.mode,
                **_build_removal_fields(each),
            )
        for each in _select_new_removals(result.stuck, self._told):
            log.warning(
                "cannot remove another mode's rules; trying again",
                left_by=each.mode,
                **_build_removal_fields(each),
                remedy="install it (package iptables), or run `vipwire cleanup` where it is installed",
            )
        self._told.update(result.waiting, result.stuck)


class OtherModes:
    """The modes other than the new one, on one node and for one family."""

    def __init__(self, arriving: ModeSpec, family: Family) -> None:
        self._arriving, self._family = arriving, family

    def find_translating(self) -> frozenset[ModeSpec]:
        """Find the modes that translate now. Raise CommitError or OSError if the kernel cannot be read."""
        from vipwire.proxy_daemon.handover.leftovers import find_translating  # noqa: PLC0415  # not every mode asks

        return find_translating(self._arriving, self._family)

    def disarm(self) -> None:
        """Remove other modes' rules that drop packets which those modes have not translated."""
        from vipwire.proxy_daemon.handover.leftovers import disarm_rules, list_engines  # noqa: PLC0415  # see translating

        for tool in list_engines(self._family):
            disarm_rules(tool)


def wrap_backend(mode: ModeSpec, family: Family, backend: Backend[Any, Any]) -> Backend[Any, Any]:
    """Return the reconciler's backend: `backend`, or the mode's wrapper."""
    return load_driver(mode).wrap_backend(backend, OtherModes(mode, family))


def _build_removal_fields(each: "Removed") -> dict[str, object]:
    return {"ip_family": each.family.value, "what": each.what}


def _select_new_removals(found: "Iterable[Removed]", told: "set[Removed]") -> "list[Removed]":
    """Leave out removals that differ from a reported one only in their numbers."""
    known = {(each.mode, each.family) for each in told}
    return [each for each in found if (each.mode, each.family) not in known]


def reexecute_process() -> None:
    """Replace this process by a new one with the same arguments, which reads the configuration again.

    Does not return.

    The process id stays, so a supervisor sees no exit. Python closes its sockets on exec (PEP 446). SIGHUP is ignored
    until the new program installs its handler, because the default action would end it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # the same program with the same words
