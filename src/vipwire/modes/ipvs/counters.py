"""Reads the counters of IPVS and of the rules of one family, without delaying the backend."""

import contextlib
from collections.abc import Iterable

from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.ipvs.counts import origins, refusals, service_counts
from vipwire.modes.ipvs.marks import Marks
from vipwire.modes.ipvs.objects.iptables_tool import Tool
from vipwire.modes.ipvs.objects.servers import Servers
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.counts import Counts, Refusal


class IpvsCounters:
    """The counters of one family, in the network namespace of the calling thread; for any thread, and many."""

    def __init__(self, family: Family, tool: Tool) -> None:
        self._family, self._tool = family, tool

    def read(self, plans: Iterable[ServicePlan], marks: Marks, *, endpoints: bool = True) -> Counts:
        """Read the counters of these plans' Services.

        Real servers cost a request for each virtual server, so only those that have carried anything are asked.
        """
        named = origins(plans, marks)
        with contextlib.closing(Servers(self._family)) as kernel:
            servers = {server: counters for server, (_, counters) in kernel.services().items() if server in named}
            busy = [server for server, counters in servers.items() if counters.connections] if endpoints else []
            reals = {server: kernel.reals(server) for server in busy}
        return service_counts(named, servers, reals, self._refusals() if servers else {})

    def _refusals(self) -> dict[Refusal, int]:
        try:
            return refusals(self._tool.counted())
        except UnsupportedError:
            return {}
