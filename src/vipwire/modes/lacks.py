"""Lists the annotations that only one mode supports, for the `LACKS` of the others. Pure."""

from typing import Final

from vipwire.plan.annotations import ForwardingMethod, Lack

ONLY_IN_USERSPACE: Final = Lack("proxy_protocol", "is in userspace mode only: endpoints get no header")


def only_in_ipvs(instead_of_forwarding: str) -> tuple[Lack, ...]:
    """List the annotations that only ipvs mode supports.

    The argument describes how another mode brings packets to endpoints.
    """
    return (
        Lack("scheduler", "is in ipvs mode only: vipwire.io/algorithm chooses endpoints"),
        Lack("scheduler_flags", "is in ipvs mode only"),
        Lack("hash_flags", "is in ipvs mode only"),
        Lack(
            "forwarding",
            f"is in ipvs mode only: {instead_of_forwarding}",
            (ForwardingMethod.DIRECT, ForwardingMethod.TUNNEL),
        ),
        Lack("drain_seconds", "is in ipvs mode only: connections stay open until their end"),
    )
