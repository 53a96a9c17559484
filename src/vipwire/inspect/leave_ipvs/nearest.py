"""The schedulers of IPVS, and what is nearest to each where nothing counts connections. Pure."""

from typing import Final, NamedTuple


class Nearest(NamedTuple):
    """What a scheduler does; the algorithm that does the same, or what else can be done. `alike`: so does chance."""

    does: str
    algorithm: str = ""
    instead: str = ""
    alike: bool = False


_COUNTS: Final = (
    "stay in ipvs mode (--proxy-mode=ipvs), or userspace mode with vipwire.io/algorithm: least-connections"
)
_PLACES: Final = "stay in ipvs mode (--proxy-mode=ipvs), or give these Services one endpoint"

NEAREST: Final = {
    "rr": Nearest("in turn", "round-robin", alike=True),
    "wrr": Nearest("in turn, by weight (kube-proxy gives all the same)", "round-robin", alike=True),
    "lc": Nearest("to whoever has the fewest connections", instead=_COUNTS),
    "wlc": Nearest("to whoever has the fewest connections, by weight", instead=_COUNTS),
    "sed": Nearest("to the shortest expected delay, by connections", instead=_COUNTS),
    "nq": Nearest("to whoever is idle, else by connections", instead=_COUNTS),
    "lblc": Nearest("one endpoint for each VIP until it is overloaded", instead=_PLACES),
    "lblcr": Nearest("some endpoints for each VIP, by load", instead=_PLACES),
    "sh": Nearest("by the client's address", "source-hash"),
    "dh": Nearest("by the VIP: always the same endpoint", instead=_PLACES),
    "mh": Nearest("by a hash of the client, stable when endpoints change", "maglev"),
    "fo": Nearest("to the first of the heaviest", instead=_PLACES),
    "ovf": Nearest("to one endpoint until it overflows", instead=_PLACES),
}
UNKNOWN: Final = Nearest("as that scheduler does", instead="stay in ipvs mode (--proxy-mode=ipvs)")
