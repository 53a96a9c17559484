"""What can be chosen on the command line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The cluster has `services` with `endpoints` each; `samples` how often a single change is measured.

    Whole proxies rest for `gap` seconds before each single change: longer than minSyncPeriod, none waits for that.

    `variants` are iptables' own: nft, legacy. Whole proxies run in `modes`, beside them the vipwire of the checkout
    `before` and the program `kube_proxy`, where these are named.
    """

    services: int = 10_000
    endpoints: int = 10
    samples: int = 300
    gap: float = 0.05
    connections: int = 4_000
    sizes: tuple[int, ...] = (10, 1_000, 10_000)
    rivals: tuple[int, ...] = (1_000, 5_000)
    variants: tuple[str, ...] = ("nft", "legacy")
    modes: tuple[str, ...] = ("nftables", "iptables", "userspace", "ebpf")
    before: str = ""
    kube_proxy: str = ""
