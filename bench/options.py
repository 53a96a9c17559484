"""The options of the command line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The cluster has `services` with `endpoints` each; `samples` is the number of measured single changes.

    Whole proxies rest for `gap` seconds before each single change; a gap above minSyncPeriod avoids its wait.
    `broken` is the number of another namespace's objects at a hostile start. `variants` are iptables' own: nft,
    legacy. Whole proxies run in `modes`, beside the vipwire of the checkout `before` and the program `kube_proxy`,
    if given.
    """

    services: int = 10_000
    endpoints: int = 10
    samples: int = 300
    gap: float = 0.05
    connections: int = 4_000
    sizes: tuple[int, ...] = (10, 1_000, 10_000)
    rivals: tuple[int, ...] = (1_000, 5_000)
    broken: int = 20_000
    variants: tuple[str, ...] = ("nft", "legacy")
    modes: tuple[str, ...] = ("nftables", "iptables", "userspace", "ebpf")
    before: str = ""
    kube_proxy: str = ""
