"""Lists what annotations may ask for that userspace mode lacks, and what is done instead. Pure."""

from typing import Final

from vipwire.plan.annotations import Forwarding, Lack

LACKS: Final = (
    Lack("port_ranges", "userspace mode serves no ranges of ports: only the port itself is served"),
    Lack("scheduler", "is in ipvs mode only: endpoints are chosen by vipwire.io/algorithm"),
    Lack("scheduler_flags", "is in ipvs mode only"),
    Lack("hash_flags", "is in ipvs mode only"),
    Lack(
        "forwarding",
        "is in ipvs mode only: a relay makes a connection of its own to the endpoint",
        (Forwarding.DIRECT, Forwarding.TUNNEL),
    ),
    Lack("drain_seconds", "is in ipvs mode only: connections go on until they end"),
)
