"""Commits changes to the store, and repeats a change that another API server's write has overtaken.

With one API server no change is overtaken: a change starts from the store's head. With several, another server may
have changed the object or allocated the chosen address. The change then waits until that write is visible, and starts
again from there. If the client named a resourceVersion, the API server answers 409 instead.
"""

import asyncio
import contextlib
import copy
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from vipwire.kube.errors import ApiError
from vipwire_up.api.admission import Admitted
from vipwire_up.api.objects.errors import (
    already_exists,
    conflict,
    internal_error,
    server_timeout,
    store_full,
    unknown_outcome,
)
from vipwire_up.store.record import (
    FENCES,
    ChangeTooLargeError,
    Check,
    ConflictError,
    Key,
    Record,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownOutcomeError,
    Write,
)
from vipwire_up.store.store import Store

_ATTEMPTS: Final = 32
_CATCH_UP_SECONDS: Final = 2.0
T = TypeVar("T")


class Commits:
    """The changes of a store. Each transaction checks the fence, if there is one."""

    def __init__(self, store: Store, fence: Check | None = None) -> None:
        self._store = store
        self._fence = (fence,) if fence else ()

    async def submit_write(self, write: Write, admitted: Admitted) -> Record:
        """Commit a write together with the hooks' additions. Cancelling the caller does not undo the write.

        Raise ConflictError if the write does not start from the newest state, ApiError for all other failures.
        """
        try:
            with admitted.taken_back_on_error():
                done = self._store.submit((write, *admitted.also, *self._fence))
            done.add_done_callback(lambda future: admitted.take_back() if future.exception() else None)
            return (await asyncio.shield(done))[0]
        except StoreUnavailableError as error:
            verb = "delete" if write.deletes else "update" if write.expected else "create"
            raise server_timeout(write.key.resource, verb, str(error)) from error
        except ChangeTooLargeError as error:
            raise ApiError(413, "RequestEntityTooLarge", f"Request entity too large: {error}") from error
        except UnknownOutcomeError as error:
            raise unknown_outcome(str(error)) from error
        except StoreFullError as error:
            raise store_full(str(error)) from error
        except StoreError as error:
            raise internal_error(str(error)) from error

    async def retry_on_conflict(self, key: Key | None, attempt: Callable[[], Awaitable[T]]) -> T:
        """Make a change of an object; repeat from the newest state if another API server's write came first."""
        for left in reversed(range(_ATTEMPTS if self._store.shared else 1)):
            if key is not None:
                await self._store.wait_until_decided(key)
            try:
                return await attempt()
            except ConflictError as error:
                if not left or error.key.resource == FENCES:
                    raise _conflict_answer(error) from None
                await self._catch_up(error)
        raise AssertionError  # pragma: no cover  # the last attempt returns or raises

    def copy_body(self, body: Any) -> Any:
        """Copy a body for one attempt, which fills in the addresses and ports that it allocates."""
        return copy.deepcopy(body) if self._store.shared else body

    async def _catch_up(self, error: ConflictError) -> None:
        """Wait until the other server's write is visible. If that takes long, return: the next attempt reports it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await self._store.wait_until_decided(error.key)
                await self._store.wait_for_revision(error.seen)


def _conflict_answer(error: ConflictError) -> Exception:
    about, name = error.key.resource, error.key.name
    return already_exists(about, name) if error.expected == 0 else conflict(about, name)
