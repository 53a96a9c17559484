"""What a Service's annotations say about how IPVS balances it. vipwire's own words win over kube-router's.

    vipwire.io/scheduler: mh                       kube-router.io/service.scheduler: mh
    vipwire.io/scheduler-flags: mh-fallback        kube-router.io/service.schedflags: flag-1,flag-2
    vipwire.io/forwarding: nat | dsr | tunnel      kube-router.io/service.dsr: tunnel
    vipwire.io/drain-seconds: 30                   how long a removed endpoint may finish its connections
    vipwire.io/algorithm: maglev                   as in every mode, where no scheduler is named

The algorithm random, which is the default, is nothing that IPVS has: the node's scheduler takes its place. Where
weights can occur, a scheduler that knows none is replaced by the one that is the same with weights. This goes by the
annotations, not by the weights of the moment: while its scheduler is exchanged, a virtual server answers nobody.

As kube-router does, a word of its own that is not known is passed over; one of ours reaches the kernel, and its
refusal names the Service.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from vipwire.netlink.ipvs import Flag, Method
from vipwire.plan.annotations import LEAST_CONNECTIONS
from vipwire.plan.spread import Algorithm

SCHEDULERS: Final = ("rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "mh", "fo", "ovf", "twos")
"""Every scheduler that a Linux kernel has had; each is the module `ip_vs_NAME`."""

_FLAGS: Final = {
    "flag-1": Flag.SCHEDULER_1,
    "flag-2": Flag.SCHEDULER_2,
    "flag-3": Flag.SCHEDULER_3,
    "mh-fallback": Flag.SCHEDULER_1,
    "sh-fallback": Flag.SCHEDULER_1,
    "mh-port": Flag.SCHEDULER_2,
    "sh-port": Flag.SCHEDULER_2,
    "ops": Flag.ONE_PACKET,
}
_DEFAULT_FLAGS: Final = {
    # Without fallback, clients whose server drains are turned away, although others could answer. kube-proxy sets
    # the port flag for mh, so that one client's connections spread.
    "mh": Flag.SCHEDULER_1 | Flag.SCHEDULER_2,
    "sh": Flag.SCHEDULER_1,
}
_ALGORITHMS: Final = {
    Algorithm.ROUND_ROBIN.value: "rr",
    Algorithm.SOURCE_HASH.value: "sh",
    Algorithm.MAGLEV.value: "mh",
    LEAST_CONNECTIONS: "lc",
}
_WITH_WEIGHTS: Final = {"rr": "wrr", "lc": "wlc"}
_METHODS: Final = {"nat": Method.MASQUERADE, "dsr": Method.ROUTE, "tunnel": Method.TUNNEL}


@dataclass(frozen=True, slots=True)
class Hints:
    """How a Service is balanced. `drain_seconds` None: until the last connection has ended."""

    scheduler: str
    flags: Flag
    method: Method = Method.MASQUERADE
    drain_seconds: int | None = None


@lru_cache(maxsize=1024)
def parse_hints(pairs: tuple[tuple[str, str], ...], default_scheduler: str) -> Hints:
    """Read annotations; whatever is absent or unreadable has its default."""
    given = dict(pairs)
    scheduler = _scheduler(given) or default_scheduler
    if "vipwire.io/weights" in given or "vipwire.io/slow-start" in given:
        scheduler = _WITH_WEIGHTS.get(scheduler, scheduler)
    flags = given.get("vipwire.io/scheduler-flags")
    if flags is None and scheduler in _DEFAULT_FLAGS:
        flags = given.get("kube-router.io/service.schedflags")
    method = _METHODS.get(given.get("vipwire.io/forwarding", "").strip().lower())
    if method is None:
        dsr = given.get("kube-router.io/service.dsr", "").strip() == "tunnel"
        method = Method.TUNNEL if dsr else Method.MASQUERADE
    drain = given.get("vipwire.io/drain-seconds", "").strip()
    return Hints(
        scheduler,
        _DEFAULT_FLAGS.get(scheduler, Flag.NONE) if flags is None else _flags(flags),
        method,
        int(drain) if drain.isascii() and drain.isdigit() else None,
    )


def _scheduler(given: Mapping[str, str]) -> str:
    ours = given.get("vipwire.io/scheduler", "").strip().lower()
    theirs = given.get("kube-router.io/service.scheduler", "").strip().lower()
    algorithm = _ALGORITHMS.get(given.get("vipwire.io/algorithm", "").strip(), "")
    return ours or (theirs if theirs in SCHEDULERS else "") or algorithm


def _flags(text: str) -> Flag:
    flags = Flag.NONE
    for word in text.split(","):
        flags |= _FLAGS.get(word.strip().lower(), Flag.NONE)
    return flags
