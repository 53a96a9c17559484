"""Which cluster of etcd is asked, by what its members say of themselves. Pure.

Each answer of etcd names the cluster of the member that gave it. A machine that was set up anew, or whose member was
restored by itself, answers at the address of a member and is a cluster of its own: what it acknowledges is lost.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """What a member that has a leader says: the number of its cluster, whose the prefix is, and its revision."""

    cluster: int
    owner: bytes
    revision: int = 0


def choose_cluster(
    answers: Collection[MemberAnswer], servers: int, known: int, owner: bytes | None, seen: int = 0
) -> tuple[int, int]:
    """Choose the cluster of etcd that is asked; return `known` unless another takes its place, 0 if they disagree.

    The one that is known stays while any member of it answers: a majority stands behind each. Another replaces it if
    most of the `servers` that are named are in it and the prefix there is its `owner`'s; None: whose it is, is judged
    later. Its members that are at a revision before `seen` count as another cluster's.

    The second number is the revision that most of the servers are at, or `seen` if that is later and stays in force.
    """
    counts = Counter((each.cluster, each.cluster == known and each.revision < seen) for each in answers)
    if not counts or (known, False) in counts:
        return known, max(seen, _reached(answers, servers, known))
    (found, _), number = counts.most_common(1)[0]
    most = 2 * number > servers
    if not known:
        chosen = found if most or len(counts) == 1 else 0
        return chosen, _reached(answers, servers, chosen)
    ours = owner is None or all(each.owner == owner for each in answers if each.cluster == found)
    return (found, _reached(answers, servers, found)) if most and ours else (known, seen)


def _reached(answers: Collection[MemberAnswer], servers: int, cluster: int) -> int:
    """Return the newest revision that most of the servers have reached as members of a cluster; else 0."""
    found = sorted((each.revision for each in answers if each.cluster == cluster), reverse=True)
    return found[servers // 2] if len(found) > servers // 2 else 0
