"""Chooses the etcd cluster by the answers of its members. Pure.

Each answer of etcd has the ID of the member's cluster. A reinstalled machine, or a member restored by itself, answers
at the address of a member and is a cluster of its own: its acknowledged writes are lost.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """The answer of a member with a leader: its cluster's ID, the prefix's owner, and its revision."""

    cluster: int
    owner: bytes
    revision: int = 0


def choose_cluster(
    answers: Collection[MemberAnswer], servers: int, known: int, owner: bytes | None, seen: int = 0
) -> tuple[int, int]:
    """Choose the etcd cluster: `known`, or another that replaces it; 0 if the members disagree.

    The known cluster stays while any member of it answers: a majority stands behind each. Another replaces it if most
    of the named `servers` are in it and `owner` owns the prefix there; None skips that check. Members at a revision
    before `seen` count as another cluster's.

    The second number is the revision that most of the servers have reached, or `seen` if that is later and still
    valid.
    """
    counts = Counter((each.cluster, each.cluster == known and each.revision < seen) for each in answers)
    if not counts or (known, False) in counts:
        return known, max(seen, _reached_revision(answers, servers, known))
    (found, _), number = counts.most_common(1)[0]
    most = 2 * number > servers
    if not known:
        chosen = found if most or len(counts) == 1 else 0
        return chosen, _reached_revision(answers, servers, chosen)
    ours = owner is None or all(each.owner == owner for each in answers if each.cluster == found)
    return (found, _reached_revision(answers, servers, found)) if most and ours else (known, seen)


def _reached_revision(answers: Collection[MemberAnswer], servers: int, cluster: int) -> int:
    """Return the newest revision that most of the servers have reached as members of a cluster; else 0."""
    found = sorted((each.revision for each in answers if each.cluster == cluster), reverse=True)
    return found[servers // 2] if len(found) > servers // 2 else 0
