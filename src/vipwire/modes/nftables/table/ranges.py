"""Ranges of ports in the table: sets whose keys are intervals, and hooks that are there while a Service has a range.

    prerouting, output  -109   ranges-firewall    as firewall-check, one by one the same as for single ports
    prerouting, output  -103   ranges             behind `services`: what that has translated never comes here
    input, forward, output -1  ranges-check       before other ports of a ClusterIP are refused
    postrouting           97   ranges-hairpin     behind `masquerading`

A look-up in an interval set takes longer than one in a hash; so whatever has no Service with a range does not pay for
it: the chains with the hooks belong to the Services that have one, together.

A range is one element in each of these sets. Its key is the first of the range, and the key's slot, where it has one,
is in network order, for these sets sort their keys as bytes.
"""

from collections.abc import Iterator

from vipwire.modes.nftables.language import SetSpec
from vipwire.modes.nftables.table.names import CHAIN, DSTNAT, SRCNAT, Chain, Hook, Object, ObjectKey

RANGE_ADDRESSES = "range-addresses"
"""The endpoints that keep the packet's port."""
RANGE_ALLOWED = "firewall-ranges-allowed"
_NEW = "ct state new jump"
_HOOKS = {
    **{
        f"filter-{hook}-ranges-pre-dnat": (f"{_NEW} ranges-firewall", ("filter", hook, -109))
        for hook in ("prerouting", "output")
    },
    **{f"nat-{hook}-ranges": ("jump ranges", ("nat", hook, DSTNAT + 1)) for hook in ("prerouting", "output")},
    **{
        f"filter-{hook}-ranges": (f"{_NEW} ranges-check", ("filter", hook, -1))
        for hook in ("input", "forward", "output")
    },
    "nat-postrouting-ranges": ("jump ranges-hairpin", ("nat", "postrouting", SRCNAT + 1)),
}
HOOKED: tuple[tuple[ObjectKey, Object], ...] = tuple(
    ((CHAIN, name.encode()), Chain((rule,), Hook(*hook))) for name, (rule, hook) in _HOOKS.items()
)
"""The chains that lead to the others; every Service with a range has a share in them."""


def range_sets(key: tuple[str, ...], target: tuple[str, ...], source: str) -> Iterator[SetSpec]:
    """Declare the sets; `key` is a frontend's, `target` an endpoint's, `source` the client's address."""
    interval, slot = frozenset({"interval"}), ("meta priority",)
    for name in ("service-ranges", "local-ranges"):
        yield SetSpec(name, key, slot, flags=interval)
    for name in ("local-policy-ranges", "no-endpoint-ranges", "no-local-endpoint-ranges", "firewall-ranges"):
        yield SetSpec(name, key, flags=interval)
    yield SetSpec(RANGE_ALLOWED, (*key, source), flags=interval)
    yield SetSpec("range-endpoints", (*key, *slot), target, flags=interval)
    yield SetSpec(RANGE_ADDRESSES, (*key, *slot), target[:1], flags=interval)
    for name in ("range-turns", "range-local-turns"):
        yield SetSpec(name, key, "verdict", flags=interval)
    yield SetSpec("hairpin-pods", (source, target[0], "meta l4proto"))


RANGE_SETS = frozenset(
    {
        "service-ranges",
        "local-ranges",
        "local-policy-ranges",
        "no-endpoint-ranges",
        "no-local-endpoint-ranges",
        "firewall-ranges",
        "range-endpoints",
        RANGE_ADDRESSES,
        RANGE_ALLOWED,
        "range-turns",
        "range-local-turns",
    }
)
"""Those whose keys are intervals."""
