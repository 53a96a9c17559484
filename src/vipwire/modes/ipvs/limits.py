"""Lists what annotations may ask for that ipvs mode lacks, and what is done instead. Pure."""

from typing import Final

from vipwire.modes.lacks import ONLY_IN_USERSPACE
from vipwire.plan.annotations import Balancing, Lack, Scope

LACKS: Final = (
    Lack("balancing", "'random' is not in ipvs mode: the node's scheduler takes its place", (Balancing.RANDOM,)),
    Lack("scope", "'service' is not in ipvs mode: IPVS remembers a client for each port by itself", (Scope.SERVICE,)),
    ONLY_IN_USERSPACE,
)
