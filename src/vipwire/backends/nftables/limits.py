"""Lists what annotations may ask for that nftables mode lacks, and what is done instead. Pure."""

from typing import Final

from vipwire.plan.annotations import Balancing, Forwarding, Lack

LACKS: Final = (
    Lack(
        "balancing",
        "'least-connections' is not in nftables mode, which does not see connections end: endpoints are chosen at "
        "random, by weight if they have any",
        (Balancing.LEAST_CONNECTIONS,),
    ),
    Lack("proxy_protocol", "is in userspace mode only: endpoints get no header"),
    Lack("scheduler", "is in ipvs mode only: endpoints are chosen by vipwire.io/algorithm"),
    Lack("scheduler_flags", "is in ipvs mode only"),
    Lack("hash_flags", "is in ipvs mode only"),
    Lack("forwarding", "is in ipvs mode only: packets are translated", (Forwarding.DIRECT, Forwarding.TUNNEL)),
    Lack("drain_seconds", "is in ipvs mode only: connections go on until they end"),
)
