"""What can be chosen on the command line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """The cluster has `services` with `endpoints` each; `samples` how often a single change is measured.

    `variants` are iptables' own: nft, legacy.
    """

    services: int = 10_000
    endpoints: int = 10
    samples: int = 300
    connections: int = 4_000
    sizes: tuple[int, ...] = (10, 1_000, 10_000)
    rivals: tuple[int, ...] = (1_000, 5_000)
    variants: tuple[str, ...] = ("nft", "legacy")
