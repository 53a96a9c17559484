"""Transactions that come at the same time go to etcd as one: a call of gRPC costs more than what it carries.

They depend on nothing of each other, as no two of them write the same key. If etcd refuses them together, each is
sent by itself, so that each gets the answer that is its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vipwire_up.store.etcd.transactions import Transactions
from vipwire_up.store.record import ConflictError, Step, StoreError, UnavailableError, UnknownOutcomeError

_SENDERS: Final = 8
_MOST_STEPS: Final = 100  # etcd's --max-txn-ops is 128
_MOST_BYTES: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class _Waiting:
    steps: tuple[Step, ...]
    values: tuple[bytes, ...]
    done: "asyncio.Future[int]"


class Gathering:
    """Sends transactions. `spawn` runs a coroutine beside all others."""

    def __init__(self, transactions: Transactions, spawn: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        self._transactions, self._spawn = transactions, spawn
        self._waiting: deque[_Waiting] = deque()
        self._senders = 0

    async def commit(self, steps: Sequence[Step], values: Sequence[bytes]) -> int:
        """Make a transaction; return its revision. Raise as `Transactions.commit`."""
        waiting = _Waiting(tuple(steps), tuple(values), asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._senders < _SENDERS:
            self._senders += 1
            self._spawn(self._send())
        return await waiting.done

    async def _send(self) -> None:
        try:
            while self._waiting:
                await self._together(self._take())
        finally:
            self._senders -= 1

    def _take(self) -> list[_Waiting]:
        """Take what fits into one request, in the order in which it came."""
        batch, steps, size = [self._waiting.popleft()], 0, 0
        while self._waiting:
            steps, size = steps + len(batch[-1].steps), size + sum(map(len, batch[-1].values))
            following = self._waiting[0]
            if steps + len(following.steps) > _MOST_STEPS or size + sum(map(len, following.values)) > _MOST_BYTES:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _together(self, batch: Sequence[_Waiting]) -> None:
        if len(batch) == 1:
            await self._alone(batch[0])
            return
        steps = [step for each in batch for step in each.steps]
        values = [value for each in batch for value in each.values]
        try:
            revision = await self._transactions.commit(steps, values)
        except (UnavailableError, UnknownOutcomeError) as error:
            for each in batch:
                _fail(each.done, error)
        except (ConflictError, StoreError):
            await asyncio.gather(*map(self._alone, batch))
        else:
            for each in batch:
                _succeed(each.done, revision)

    async def _alone(self, waiting: _Waiting) -> None:
        try:
            _succeed(waiting.done, await self._transactions.commit(waiting.steps, waiting.values))
        except Exception as error:  # noqa: BLE001  # whatever it is: who waits is told
            _fail(waiting.done, error)


def _succeed(future: "asyncio.Future[int]", revision: int) -> None:
    if not future.done():
        future.set_result(revision)


def _fail(future: "asyncio.Future[int]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
