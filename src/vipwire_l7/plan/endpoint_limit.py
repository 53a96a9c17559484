"""Limits the endpoints of each namespace that HAProxy gets. Pure.

HAProxy keeps memory and a descriptor for each endpoint of each backend, and reads all at each reload. The largest
backends of a namespace over the limit use only some of their endpoints, each as many; none loses all.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

_ALL: Final = 10**9


class EndpointLimit:
    """The numbers of endpoints that backends may use. Call `put` for all changes, then `judge`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[str, dict[str, int]] = {}
        """The endpoints of each namespace's backends."""
        self._sums = Counter[str]()
        self._shares: dict[str, int] = {}
        """The maximum of a backend in each namespace over the limit."""
        self._changed = set[str]()

    @property
    def exceeded(self) -> Mapping[str, str]:
        """Return the largest backend of each namespace over the limit."""
        return {of: max(sizes := self._sizes[of], key=lambda each: (sizes[each], each)) for of in self._shares}

    def put(self, namespace: str, backend: str, size: int) -> None:
        """Record the endpoints of a backend; 0 removes it."""
        sizes = self._sizes.setdefault(namespace, {})
        self._sums[namespace] += size - sizes.pop(backend, 0)
        if size:
            sizes[backend] = size
        self._changed.add(namespace)

    def judge(self) -> set[str]:
        """Share the limit anew in the changed namespaces; return the backends whose maximum counts and changed."""
        found = set[str]()
        for of in self._changed:
            sizes, before = self._sizes[of], self.get_share(of)
            if self._sums[of] > self._most:
                self._shares[of] = _divide(sizes.values(), self._most)
            else:
                self._shares.pop(of, None)
            if before != (after := self.get_share(of)):
                found |= {backend for backend, size in sizes.items() if size > min(before, after)}
            if not sizes:
                del self._sizes[of], self._sums[of]
        self._changed.clear()
        return found

    def get_share(self, namespace: str) -> int:
        """Return the maximum of endpoints of each backend of a namespace."""
        return self._shares.get(namespace, _ALL)


def _divide(sizes: Iterable[int], most: int) -> int:
    """Return the number to which the largest sizes are cut, so that the sum is at most `most`; 1 at least."""
    left, ordered = most, sorted(sizes)
    for number, size in enumerate(ordered):
        share = left // (len(ordered) - number)
        if size > share:
            return max(1, share)
        left -= size
    return _ALL
