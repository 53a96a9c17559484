"""Which cluster of etcd is asked, by what its members say of themselves. Pure.

Each answer of etcd names the cluster of the member that gave it. A machine that was set up anew, or whose member was
restored by itself, answers at the address of a member and is a cluster of its own: what it acknowledges is lost.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """What a member that has a leader says: the number of its cluster of etcd, and whose the prefix is there."""

    cluster: int
    owner: bytes


def choose_cluster(answers: Collection[Member], servers: int, known: int, owner: bytes | None) -> int:
    """Choose the cluster of etcd that is asked; return `known` unless another takes its place, 0 if they disagree.

    The one that is known stays while any member of it answers: a majority stands behind each. Another replaces it if
    most of the `servers` that are named are in it and the prefix there is its `owner`'s; None: whose it is, is judged
    later.
    """
    counts = Counter(each.cluster for each in answers)
    if not counts or known in counts:
        return known
    found, number = counts.most_common(1)[0]
    most = 2 * number > servers
    if not known:
        return found if most or len(counts) == 1 else 0
    ours = owner is None or all(each.owner == owner for each in answers if each.cluster == found)
    return found if most and ours else known
