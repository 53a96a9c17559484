"""Chooses a Service's IPVS scheduler, its flags and the forwarding method from annotations.

A named scheduler wins, then the one for the algorithm (IPVS has none for random, the default), then the node's. If
annotations allow weights, vipwire takes the weighted variant of a scheduler from the start, because a virtual server
answers no client while the kernel exchanges its scheduler.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import Final

from vipwire.linux.netlink.ipvs import Method, Scheduling, ServiceFlag
from vipwire.plan.annotations import Balancing, ForwardingMethod, SchedulerFlag, Wishes

_FLAGS: Final = {
    SchedulerFlag.FIRST: ServiceFlag.SCHEDULER_1,
    SchedulerFlag.SECOND: ServiceFlag.SCHEDULER_2,
    SchedulerFlag.THIRD: ServiceFlag.SCHEDULER_3,
    SchedulerFlag.ONE_PACKET: ServiceFlag.ONE_PACKET,
}
_DEFAULT_FLAGS: Final = {
    # Without fallback (SCHEDULER_1), IPVS refuses clients of a draining server. kube-proxy sets the port flag
    # (SCHEDULER_2) for mh, so that one client's connections spread.
    "mh": ServiceFlag.SCHEDULER_1 | ServiceFlag.SCHEDULER_2,
    "sh": ServiceFlag.SCHEDULER_1,
}
_ALGORITHMS: Final = {
    Balancing.ROUND_ROBIN: "rr",
    Balancing.SOURCE_HASH: "sh",
    Balancing.MAGLEV: "mh",
    Balancing.LEAST_CONNECTIONS: "lc",
}
_WITH_WEIGHTS: Final = {"rr": "wrr", "lc": "wlc"}
_METHODS: Final = {
    ForwardingMethod.NAT: Method.MASQUERADE,
    ForwardingMethod.DIRECT: Method.ROUTE,
    ForwardingMethod.TUNNEL: Method.TUNNEL,
}


def choose_scheduling(asked: Wishes, default_scheduler: str) -> Scheduling:
    algorithm = _ALGORITHMS.get(asked.balancing, "") if asked.balancing is not None else ""
    scheduler = asked.scheduler or algorithm or default_scheduler
    if "weights" in asked.given or asked.slow_start is not None:
        scheduler = _WITH_WEIGHTS.get(scheduler, scheduler)
    return Scheduling(scheduler, _choose_flags(asked, scheduler))


def choose_method(asked: Wishes) -> Method:
    return _METHODS[asked.forwarding]


def _choose_flags(asked: Wishes, scheduler: str) -> ServiceFlag:
    if asked.scheduler_flags is not None:
        return _combine_flags(asked.scheduler_flags)
    if asked.hash_flags is not None and scheduler in _DEFAULT_FLAGS:
        return _combine_flags(asked.hash_flags)
    return _DEFAULT_FLAGS.get(scheduler, ServiceFlag.NONE)


def _combine_flags(asked: Iterable[SchedulerFlag]) -> ServiceFlag:
    return reduce(or_, (_FLAGS[each] for each in asked), ServiceFlag.NONE)
