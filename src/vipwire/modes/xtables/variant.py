"""The kernel's two rule engines, and which of them this node uses. Pure.

Rules in both are both in force, one engine after the other: a node must have its rules in one of them, and that is
the one that kubelet and the network plugin use.
"""

import enum
from collections.abc import Mapping
from typing import Final, TypeVar

K = TypeVar("K")

KUBELETS: Final = ("KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT")
"""Chains that kubelet makes, and nobody else, in the engine that the node uses."""


class Variant(enum.Enum):
    """The rule engine that a tool speaks to; the value is a part of the names of its programs."""

    NFT = "nft"
    LEGACY = "legacy"


def has_kubelets_chains(saved: str) -> bool:
    """Report whether kubelet has made its chains in what iptables-save shows."""
    return any(f":{chain} " in saved for chain in KUBELETS)


def count_rules(saved: str) -> int:
    """Count the rules of what iptables-save shows."""
    return f"\n{saved}".count("\n-A ")


def by_use(saved: Mapping[K, str]) -> list[K]:
    """Order engines by how surely this node uses each: first where kubelet has been, then where more rules are.

    `saved` is what iptables-save shows of each; what is alike stays in its order.
    """
    return sorted(saved, key=lambda each: (has_kubelets_chains(saved[each]), count_rules(saved[each])), reverse=True)
