"""The records that an election fences its writers with.

Whoever is elected writes a record of its own, the fence. Each transaction of a fenced registry checks that the fence
is as that write left it. A successor writes the fence again before it starts anything. So a process that was stopped,
and goes on without knowing that another has taken over, changes nothing: the store refuses its transactions.
"""

from typing import Final

FENCES: Final = "fences.vipwire.io"
"""The resource of the records, which the API does not serve."""
