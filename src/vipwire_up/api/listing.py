"""Lists: the revision of a list, and its pages.

    resourceVersion   ""          the newest state
                      "0"         any state; here the newest
                      "N"         at least as new as N, unless resourceVersionMatch says Exact, or a limit is set
    continue          the same state as the pages before; 410 when the store has compacted that

(kubernetes.io/docs/reference/using-api/api-concepts, "Resource versions")
"""

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from vipwire.kube.errors import ApiError
from vipwire_up.api.objects.errors import bad_request, expired_revision, server_timeout
from vipwire_up.api.objects.object import encode
from vipwire_up.api.objects.parameters import Parameters
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.selectors import Selector
from vipwire_up.store.record import CompactedError, FutureRevisionError, Key, Record, StoreError
from vipwire_up.store.store import Store

_AT_ONCE: Final = 1 << 20
_NAME_BYTES: Final = 100  # to compare names takes as long as to decode so many
_PATIENCE: Final = 3.0  # seconds that a request waits for a future revision


@dataclass(frozen=True, slots=True)
class ListPage:
    """The records of a page, and the metadata of the list."""

    records: list[Record]
    meta: Mapping[str, Any]


class _Cursor(msgspec.Struct, frozen=True):
    """The content of a `continue` token: the last name, and the revision of the first page."""

    rv: int
    namespace: str
    name: str


async def list_page(
    store: Store, resource: Resource, selector: Selector, query: Parameters, *, damaged: bool = False
) -> ListPage:
    """Return the page that a request asks for, with damaged records or without. Raise ApiError 400, 410 or 504."""
    limit, cursor = max(query.number("limit") or 0, 0), _read_cursor(query.text("continue"))
    revision = cursor.rv if cursor else await _choose_revision(store, resource, query, limit)
    try:
        records: Sequence[Record] = store.scan(resource.id, at=revision)
    except CompactedError:
        raise _expired_cursor_error(cursor, revision or 0, store.floor) from None
    except FutureRevisionError:
        raise bad_request(f"invalid continue token or resource version: {revision}") from None
    if cursor:
        after = Key(resource.id, cursor.namespace, cursor.name)
        records = [record for record in records if record.key > after]
    if not damaged and store.damaged(resource.id):
        records = [record for record in records if not store.is_damaged(record)]
    shown = store.revision if revision is None else revision
    if not selector.everything:
        records = [record async for part in select_matching(records, selector) for record in part]
    return _build_page(list(records), shown, limit, exact=not (selector.labels or selector.fields))


async def select_matching(records: Iterable[Record], selector: Selector) -> AsyncIterator[list[Record]]:
    """Yield the records that match, in parts. Lets other requests go on after each megabyte that it decodes."""
    found, read = list[Record](), 0
    for record in records:
        if selector.matches(record):
            found.append(record)
        read += len(record.value) if selector.decodes else _NAME_BYTES
        if read > _AT_ONCE:
            yield found
            found, read = [], 0
            await asyncio.sleep(0)
    yield found


async def wait_for_revision(store: Store, revision: int) -> None:
    """Wait until the store has a revision, up to `_PATIENCE` seconds; raise ApiError 504 after that."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await store.wait_for_revision(revision)
    except TimeoutError:
        message = f"Too large resource version: {revision}, current: {store.revision}"
        causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
        raise ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1}) from None


async def wait_for_newest(store: Store, resource: Resource, verb: str) -> None:
    """Wait until all acknowledged writes are visible; raise ApiError 500 if the store cannot tell."""
    try:
        async with asyncio.timeout(_PATIENCE):
            await store.wait_for_newest()
    except (StoreError, TimeoutError) as error:
        raise server_timeout(resource.id, verb, str(error) or "the store does not answer") from error


async def _choose_revision(store: Store, resource: Resource, query: Parameters, limit: int) -> int | None:
    match, text = query.text("resourceVersionMatch"), query.text("resourceVersion")
    if match and not text:
        raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
    if match not in ("", "Exact", "NotOlderThan"):
        raise bad_request(f'resourceVersionMatch: Unsupported value: "{match}": supported: Exact, NotOlderThan')
    revision = query.revision("resourceVersion")
    if match == "Exact" and revision == 0:
        raise bad_request('resourceVersionMatch "Exact" is forbidden for resourceVersion "0"')
    if not text:
        await wait_for_newest(store, resource, "list")
    if not revision:
        return None
    await wait_for_revision(store, revision)
    return revision if match == "Exact" or (limit and not match) else None


def _build_page(records: list[Record], revision: int, limit: int, *, exact: bool) -> ListPage:
    meta: dict[str, Any] = {"resourceVersion": str(revision)}
    if limit and len(records) > limit:
        last = records[limit - 1].key
        cursor = _Cursor(revision, last.namespace, last.name)
        meta["continue"] = base64.urlsafe_b64encode(encode(cursor)).decode()
        if exact:
            meta["remainingItemCount"] = len(records) - limit
        records = records[:limit]
    return ListPage(records, meta)


def _read_cursor(text: str) -> _Cursor | None:
    if not text:
        return None
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(text), type=_Cursor)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise bad_request("continue key is not valid") from None


def _expired_cursor_error(cursor: _Cursor | None, revision: int, floor: int) -> ApiError:
    if cursor is None:
        return expired_revision(f"The resourceVersion for the provided list is too old: {revision} ({floor})")
    return expired_revision(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list "
        "without the continue parameter."
    )
