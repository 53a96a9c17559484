"""The table of a Service's annotations: keys, values, meanings.

docs/annotations.md is written from it. If two annotations set the same wish, the later one with a valid value counts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from vipwire.plan.annotations import values
from vipwire.plan.annotations.values import Balancing, ForwardingMethod, Reader, Scope

PREFIX: Final = "vipwire.io/"
KUBE_ROUTER: Final = "kube-router.io/service."
LOCAL: Final = f"{KUBE_ROUTER}local"


class Word(NamedTuple):
    """One annotation. `wish` is the field of `Wishes` that it sets, `default` the value without it."""

    key: str
    wish: str
    read: Reader
    values: str
    default: str
    meaning: str


_BALANCING: Final = values.build_enum_reader("algorithm", Balancing)
_TRUTH: Final = values.build_word_reader("truth", {"true": True, "false": False, "": False})
_PROXY_VERSIONS: Final = values.build_word_reader("version of the PROXY protocol", {"v1": 1, "v2": 2})

# fmt: off
WORDS: Final = (
    Word(f"{KUBE_ROUTER}scheduler", "scheduler", values.scheduler, "as `vipwire.io/scheduler`", "",
        "kube-router's name for this annotation; vipwire's has precedence"),
    Word(f"{KUBE_ROUTER}schedflags", "hash_flags", values.numbered_flags, "`flag-1`, `flag-2`, `flag-3`, with commas",
        "", "kube-router's name for the flags of the schedulers mh and sh; vipwire's has precedence"),
    Word(f"{KUBE_ROUTER}dsr", "forwarding",
        values.build_word_reader("way of forwarding", {"tunnel": ForwardingMethod.TUNNEL}), "`tunnel`", "",
        "kube-router's name for `vipwire.io/forwarding`; vipwire's has precedence"),
    Word(LOCAL, "local_only", _TRUTH, "`true`, `false`", "`false`",
        "kube-router's name for `externalTrafficPolicy: Local`"),
    Word(f"{PREFIX}algorithm", "balancing", _BALANCING, ", ".join(f"`{each.value}`" for each in Balancing),
        "the mode's own", "choice of the endpoint of a new connection"),
    Word(f"{PREFIX}weights", "weights", values.parse_weights,
        f'`{{"10.0.1.5": 3}}`: by endpoint address, 0 to {values.HEAVIEST}', "1 for each",
        "share of an endpoint in new connections; 0 drains it. vipwire ignores an invalid entry"),
    Word(f"{PREFIX}slow-start", "slow_start", values.build_duration_reader("time to start in"),
        f"`30s`, `1m30s`: 1s to {values.SLOWEST_START // 60}m", "none",
        "time in which a new endpoint ramps up to its full weight; not with `source-hash`"),
    Word(f"{PREFIX}eject-after", "eject_after", values.build_count_reader("number of failures", values.MOST_FAILURES),
        f"1 to {values.MOST_FAILURES}", "never",
        "number of consecutive unanswered connections after which vipwire ejects an endpoint"),
    Word(f"{PREFIX}eject-for", "eject_for", values.build_duration_reader("time to be ejected for"),
        f"`30s`, `1m30s`: 1s to {values.SLOWEST_START // 60}m", "`30s`",
        "duration of the first ejection; each consecutive ejection doubles it, up to 5m"),
    Word(f"{PREFIX}eject-at-most", "eject_at_most", values.build_count_reader("percentage", values.WHOLE),
        f"1 to {values.WHOLE}", "`50`",
        "largest percentage of ejected endpoints of a port; at least one endpoint, never the last"),
    Word(f"{PREFIX}eject-udp", "eject_udp", _TRUTH, "`true`, `false`", "`false`",
        "also eject UDP endpoints; TCP and SCTP need no setting"),
    Word(f"{PREFIX}affinity-scope", "scope", values.build_enum_reader("scope", Scope), "`port`, `service`", "`port`",
        "scope of `sessionAffinity: ClientIP`: one endpoint for each port, or one for all ports of the Service"),
    Word(f"{PREFIX}nodeport-source-ranges", "node_port_sources", values.prefixes, "CIDRs, with commas", "all sources",
        "CIDRs of clients that may use the node ports"),
    Word(f"{PREFIX}port-range", "port_ranges", values.parse_port_ranges,
        "`10000-20000`, or `rtp=10000-20000,ctl=5000-5009` by the names of ports", "none",
        "range of ports that lead to the endpoints of the port; contains the port"),
    Word(f"{PREFIX}proxy-protocol", "proxy_protocol", _PROXY_VERSIONS, "`v1`, `v2`", "none",
        "send the client's address to endpoints, in a header before the data"),
    Word(f"{PREFIX}scheduler", "scheduler", values.scheduler, ", ".join(f"`{name}`" for name in values.SCHEDULERS),
        "by the algorithm, else `ipvs.scheduler`", "the kernel's scheduler"),
    Word(f"{PREFIX}scheduler-flags", "scheduler_flags", values.scheduler_flags,
        "`mh-fallback`, `mh-port`, `sh-fallback`, `sh-port`, `flag-1`…`flag-3`, `ops`, with commas",
        "`mh-fallback`, `mh-port`; `sh-fallback`",
        "flags of the scheduler; `ops`: each packet is a connection of its own"),
    Word(f"{PREFIX}forwarding", "forwarding", values.build_enum_reader("way of forwarding", ForwardingMethod),
        "`nat`, `dsr`, `tunnel`", "`nat`",
        "way of packets for external addresses to an endpoint; with the last two, endpoints reply to the "
        "client directly"),
    Word(f"{PREFIX}drain-seconds", "drain_seconds", values.parse_seconds,
        f"whole seconds, 0 to {values.LONGEST_DRAIN}", "unlimited: until its last connection ends",
        "time for the connections of a removed endpoint"),
)
# fmt: on

BY_KEY: Final[Mapping[str, Word]] = MappingProxyType({word.key: word for word in WORDS})

KUBE_ROUTERS_OWN: Final = frozenset(
    KUBE_ROUTER + word
    for word in (
        "hairpin",
        "hairpin.externalips",
        "advertise.clusterip",
        "advertise.externalip",
        "advertise.loadbalancerip",
        "skiplbips",
    )
)
"""kube-router's other annotations, which vipwire ignores."""
