"""What a part's writes depend on: the fence of the election that it was started by, if any.

Whoever is elected writes a record of its own, the fence. Each transaction of its parts checks that the fence is as
that write left it. A successor writes the fence again before it starts anything. So a process that was stopped, and
goes on without knowing that another has taken over, changes nothing: the store refuses its transactions.
"""

from contextvars import ContextVar
from typing import Final

from vipwire_up.store.record import Check

FENCES: Final = "fences.vipwire.io"
"""The resource of the records, which the API does not serve."""
HOLDING: Final[ContextVar[Check | None]] = ContextVar("HOLDING", default=None)
"""The fence of the part that runs; None for what nobody was elected for."""
