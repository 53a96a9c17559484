"""Watches: a stream of events from a revision on, as lines of JSON.

An object that begins to match a selector is ADDED for its watcher, one that no longer matches is DELETED. If the
store compacts the revision of a slow watch, the watch ends with an ERROR 410: the client lists again.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from vipwire.kube.errors import ApiError
from vipwire_up.api.answers.form import Representation, RepresentationKind, encode_bookmark, watch_encoder
from vipwire_up.api.listing import select_matching
from vipwire_up.api.objects.errors import bad_request, expired_revision
from vipwire_up.api.objects.object import decode_record, encode
from vipwire_up.api.objects.parameters import Parameters
from vipwire_up.api.objects.resource import Resource
from vipwire_up.api.selectors import Selector
from vipwire_up.store.record import CompactedError, FutureRevisionError, Record, RecordChange
from vipwire_up.store.store import Store

BOOKMARK_SECONDS: Final = 300.0
"""A watch also ends with a bookmark, from which its client goes on."""
_LAG_SECONDS: Final = 5.0
_SHORTEST, _LONGEST = 1800, 3600  # default seconds of a watch, random: clients should not all return at once
_ENOUGH: Final = 1 << 14  # bytes per write; larger pieces are passed on without a copy

Line: TypeAlias = tuple[bytes, ...]
"""An event in parts: all watchers share the parts of an object."""


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """A watch: the selection, the first revision (0: the current objects, then all changes), and the form."""

    resource: Resource
    selector: Selector
    form: Representation
    since: int
    initial: bool
    bookmarks: bool
    initial_end: bool
    seconds: float


def read_watch(resource: Resource, selector: Selector, form: Representation, query: Parameters) -> WatchRequest:
    since, seconds = query.revision("resourceVersion"), query.number("timeoutSeconds")
    match, chosen = query.text("resourceVersionMatch"), "sendInitialEvents" in query
    if chosen and match != "NotOlderThan":
        raise bad_request("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    if match and not chosen:
        raise bad_request("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
    wants_initial = query.flag("sendInitialEvents") if chosen else since == 0
    spread = random.uniform(_SHORTEST, _LONGEST)  # noqa: S311  # an attacker gains nothing by guessing
    bookmarks = query.flag("allowWatchBookmarks")
    return WatchRequest(
        resource,
        selector,
        form,
        since,
        wants_initial,
        bookmarks,
        wants_initial and chosen and bookmarks,
        max(seconds, 0) if seconds else spread,
    )


async def stream_watch(
    store: Store, request: WatchRequest, clock: Callable[[], datetime], bookmark_every: float = BOOKMARK_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of events, several at once if they come together, until the watch's time is over."""
    write = watch_encoder(request.resource, request.form, clock)
    since = request.since
    try:
        if since > store.revision:
            with contextlib.suppress(TimeoutError):
                # A future revision; with several servers, one that another server has just written.
                async with asyncio.timeout(min(request.seconds, _LAG_SECONDS) if store.shared else request.seconds):
                    await store.wait_for_revision(since)
        since = since or store.revision
        if request.initial:
            since = store.revision
            async for chunk in _stream_initial_state(store, request, write):
                yield chunk
            if request.initial_end:
                yield b"".join(
                    _build_line("BOOKMARK", encode_bookmark(request.resource, request.form, since, initial_end=True))
                )
        async for chunk in _stream_changes(store, request, write, since, min(bookmark_every, request.seconds)):
            yield chunk
    except FutureRevisionError as error:
        yield encode_error_line(
            expired_revision(f"resource version {error.revision} is ahead of the store, at {error.current}")
        )
    except CompactedError as error:
        yield encode_error_line(expired_revision(f"too old resource version: {error.revision} ({error.floor})"))
    except ApiError as error:
        yield encode_error_line(error)


async def _stream_changes(
    store: Store, request: WatchRequest, write: Callable[[Record], bytes], since: int, bookmark_every: float
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    end = loop.time() + request.seconds
    while (now := loop.time()) < end:
        changes = store.changes(request.resource.id, since)
        if changes:
            since = changes[-1].revision
            for chunk in _join_lines(
                line for change in changes if (line := encode_event(change, request.selector, write))
            ):
                yield chunk
            continue
        since = max(since, store.revision)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(bookmark_every, end - now)):
                await store.wait_for_change(request.resource.id)
            continue
        if request.bookmarks and not store.changes(request.resource.id, since):
            since = max(since, store.revision)
            yield b"".join(
                _build_line("BOOKMARK", encode_bookmark(request.resource, request.form, since, initial_end=False))
            )


def encode_event(change: RecordChange, selector: Selector, write: Callable[[Record], bytes]) -> Line:
    """Return the line of a change for a watcher, () for none."""
    was = change.previous is not None and selector.matches(change.previous)
    now = not change.deleted and selector.matches(change.record)
    if now:
        return _build_line("MODIFIED" if was else "ADDED", write(change.record))
    if not was or change.previous is None:
        return ()
    return _build_line(
        "DELETED", write(change.record if change.deleted else _set_revision(change.previous, change.revision))
    )


def encode_error_line(error: ApiError) -> bytes:
    return b"".join(_build_line("ERROR", encode(error.status())))


async def _stream_initial_state(
    store: Store, request: WatchRequest, write: Callable[[Record], bytes]
) -> AsyncGenerator[bytes, None]:
    tables = request.form.view is RepresentationKind.TABLE  # tables show damaged objects, too
    records = (record for record in store.scan(request.resource.id) if tables or not store.is_damaged(record))
    async for part in select_matching(records, request.selector):
        for chunk in _join_lines(_build_line("ADDED", write(record)) for record in part):
            yield chunk


def _join_lines(lines: Iterator[Line]) -> Iterator[bytes]:
    gathered, size = list[bytes](), 0
    for part in (part for line in lines for part in line):
        if size and size + len(part) > _ENOUGH:
            yield b"".join(gathered)
            gathered, size = [], 0
        if len(part) > _ENOUGH:
            yield part
        else:
            gathered.append(part)
            size += len(part)
    if gathered:
        yield b"".join(gathered)


def _build_line(kind: str, value: bytes) -> Line:
    return (b'{"type":"%s","object":' % kind.encode(), value, b"}\n")


def _set_revision(record: Record, revision: int) -> Record:
    """Copy a state with the revision at which the object stopped matching."""
    value = decode_record(record)
    value["metadata"]["resourceVersion"] = str(revision)
    return Record(record.key, revision, encode(value))
