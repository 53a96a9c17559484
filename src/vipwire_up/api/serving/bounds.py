"""The limits of one client of the API server: connections, requests, seconds and bytes. Pure.

Where kube-apiserver has a bound, it is the same: 3 MiB of body, 400 requests that read and 200 that write at a time
(--max-requests-inflight, --max-mutating-requests-inflight), a minute for a request (--request-timeout). The others
are for a server that is one process with one event loop: who has shown no credentials gets little of everything.
"""

import dataclasses
from dataclasses import dataclass
from typing import Final

BODY_BYTES: Final = 3 << 20
_RESERVE: Final = 256  # files that connections never get: the store, the kernel, DNS, probes


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one server.

    Strangers are connections without a request of a known user yet: where there are too many of them, each new one
    takes the place of the oldest. `of_one` are parts that one user may have of the requests, `one_address` the
    connections that one address may have, `one_watcher` the watches of one user from one address.
    """

    connections: int = 10_000
    one_address: int = 5_000
    strangers: int = 512
    strangers_of_one: int = 128
    first_seconds: float = 10.0
    idle_seconds: float = 90.0
    body_seconds: float = 30.0
    stall_seconds: float = 30.0
    request_seconds: float = 60.0
    body_bytes: int = BODY_BYTES
    question_bytes: int = 64 << 10
    all_bodies: int = 96 << 20
    reads: int = 400
    writes: int = 200
    of_one: float = 0.5
    watches: int = 10_000
    one_watcher: int = 1_000

    def fitting(self, files: int) -> "Bounds":
        """Lower the number of connections to what a limit of open files allows."""
        most = max(files - _RESERVE, 32)
        if most >= self.connections:
            return self
        strangers = min(self.strangers, most // 2)
        return dataclasses.replace(
            self,
            connections=most,
            one_address=min(self.one_address, most - most // 8),
            strangers=strangers,
            strangers_of_one=min(self.strangers_of_one, strangers // 2),
        )
