"""What an error of etcd means: whether a change may have been made, and whether another member may do better. Pure.

etcd's texts are those of its client API (api/v3rpc/rpctypes/error.go); those of gRPC's own that matter say that there
was no connection.
"""

from enum import Enum
from typing import Final


class Verdict(Enum):
    """The meaning of an error."""

    ELSEWHERE = "not done; another member, or the same one later, may do it"
    UNCERTAIN = "nobody knows whether it was done"
    LOGIN = "not done; the token does not hold any more"
    FULL = "not done; there is no space"
    LARGE = "not done; the request is too large"
    COMPACTED = "not done; the revision is gone"
    LEASE_GONE = "not done; the lease has ended"
    REFUSED = "not done, and never will be"


_TEXTS: Final = (
    ("database space exceeded", Verdict.FULL),
    ("request is too large", Verdict.LARGE),
    ("message larger than max", Verdict.LARGE),
    ("required revision has been compacted", Verdict.COMPACTED),
    ("requested lease not found", Verdict.LEASE_GONE),
    ("invalid auth token", Verdict.LOGIN),
    ("revision of auth store is old", Verdict.LOGIN),
    ("authentication failed", Verdict.REFUSED),
    ("authentication is not enabled", Verdict.REFUSED),
    ("user name is empty", Verdict.REFUSED),
    ("permission denied", Verdict.REFUSED),
    ("no leader", Verdict.ELSEWHERE),
    ("too many requests", Verdict.ELSEWHERE),
    ("failed to connect", Verdict.ELSEWHERE),
    ("not supported for learner", Verdict.ELSEWHERE),
)
_UNCERTAIN: Final = frozenset(
    {"UNAVAILABLE", "DEADLINE_EXCEEDED", "INTERNAL", "UNKNOWN", "CANCELLED", "ABORTED", "DATA_LOSS"}
)


def judge(code: str, text: str) -> Verdict:
    """Judge an error by its gRPC code and its text."""
    for part, verdict in _TEXTS:
        if part in text:
            return verdict
    if code == "UNAUTHENTICATED":
        return Verdict.LOGIN
    return Verdict.UNCERTAIN if code in _UNCERTAIN else Verdict.REFUSED
