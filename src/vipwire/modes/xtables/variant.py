"""The kernel's two iptables engines, and the choice between them. Pure.

The kernel applies both engines' rules, one after the other, so a node must have its rules in one: that of kubelet and
the network plugin.
"""

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

K = TypeVar("K")

KUBELETS: Final = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
"""Chains that only kubelet creates, in the engine that the node uses."""


class Variant(enum.Enum):
    """The engine of a tool; the value is part of the names of its programs."""

    NFT = "nft"
    LEGACY = "legacy"


def has_kubelets_chains(saved: str) -> bool:
    return any(f":{chain} " in saved for chain in KUBELETS)


def count_rules(saved: str) -> int:
    return f"\n{saved}".count("\n-A ")


def by_use(saved: Mapping[K, str]) -> list[K]:
    """Order engines by the evidence that this node uses them: first kubelet's chains, then more rules.

    `saved` is each engine's iptables-save output. The sort is stable.
    """
    return sorted(saved, key=lambda each: (has_kubelets_chains(saved[each]), count_rules(saved[each])), reverse=True)
