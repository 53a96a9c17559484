"""Lists what annotations may ask for that nftables mode lacks, and what is done instead. Pure."""

from typing import Final

from vipwire.modes.lacks import ONLY_IN_USERSPACE, only_in_ipvs
from vipwire.plan.annotations import Balancing, Lack

LACKS: Final = (
    Lack(
        "balancing",
        "'least-connections' is not in nftables mode, which does not see connections end: endpoints are chosen at "
        "random, by weight if they have any",
        (Balancing.LEAST_CONNECTIONS,),
    ),
    ONLY_IN_USERSPACE,
    *only_in_ipvs("packets are translated"),
)
