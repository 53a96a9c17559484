"""The list and watch protocol of one kind, without input or output.

`ResourceWatch` receives bytes, ends, failures, the time and random numbers, and returns events and the next action.
Its version and its token tell its state:

    list ──page──▶ list (next chunk) ──last page──▶ watch from the list's version ──end──▶ watch from the last version
     ▲                    │ 410: from the start,        │ 410, garbage, unknown error
     └────────────────────┴─in one piece◀───────────────┘

Rules:

* While the server is away, no events: the rules stay.
* A version from which the server cannot continue (410) is no failure: list again, at once. A version straight from a
  list counts as a failure, because a server that forgets so quickly would be asked without pause.
* A watch that ends within a second counts as a failure, because a server that accepts and closes would be asked
  without pause.
* A version lower than one seen before means that the server's store was restored: list again, and report that. A
  server that has gone back sends nothing to a watch from a higher version. So a watch without an event or a bookmark
  in all its time ends with a list.
* `Listed` replaces everything, so only a complete list becomes an event.

See "Efficient detection of changes" and "Retrieving large results sets in chunks" in the Kubernetes documentation.
"""

from typing import Generic, TypeAlias

import msgspec

from vipwire.kube import wire
from vipwire.kube.contact import Contact, Health
from vipwire.kube.resource import BROKEN, ObjectReader, Resource
from vipwire.model.names import ObjectName
from vipwire.model.problem import Problem
from vipwire.model.value import Value
from vipwire.watched_objects.event import Deleted, EventOf, K, Listed, T, Upserted

PAGE_SIZE = 500
LEAST_WATCH = 300.0
"""Least `timeoutSeconds` of a watch; at most twice that, at random, so that nodes do not return together."""
BRIEF = 1.0
"""A watch shorter than this, in seconds, made no progress."""
LONGEST_LINE = 16 << 20
LONGEST_PAGE = 256 << 20
"""Most bytes of an unpacked list answer: 100,000 Services of 2.5 KB, for a server without chunks."""
LONGEST_LIST = 2 << 30
"""Most bytes of all pages of a list."""
MOST_OBJECTS = 1_000_000
"""Most objects of a kind. A page counts as at least `_LEAST_PAGE`, so that a list of empty pages ends."""
_LEAST_PAGE = 50
_LONGEST_NUMBER = 20
MOST_NAMELESS = 1_000
"""Most nameless objects of a list. An API server writes none."""


class WatchRequest(Value, frozen=True):
    """GET `path` with `query`. `timeout` limits the whole answer, in seconds."""

    path: str
    query: tuple[tuple[str, str], ...]
    watch: bool
    timeout: float


class Sleep(Value, frozen=True):
    """Wait so many seconds, then call `next_action` again."""

    seconds: float


Action: TypeAlias = WatchRequest | Sleep


class ResourceWatch(Generic[K, T]):
    """The state of list and watch for one kind. Never raises for a server's answer."""

    def __init__(self, resource: Resource[K, T]) -> None:
        self.resource = resource
        self.broken = False
        """True if the rest of this watch's answer is useless."""
        self._reader = ObjectReader(resource)
        self._page = msgspec.json.Decoder(wire.Page)
        self._line = msgspec.json.Decoder(wire.WatchEvent)
        self._status = msgspec.json.Decoder(wire.Status)
        self._contact = Contact(resource.plural)
        self._known: set[ObjectName] = set()
        self._found: dict[ObjectName, T] = {}
        self._problems: list[Problem] = []
        self._objects = self._bytes = 0  # of the current list
        self._version = ""
        self._highest = 0
        self._heard = False
        self._token = ""
        self._chunked = True
        self._absent = False
        self._just_listed = True
        self._field_selector = ",".join(filter(None, (resource.field_selector, resource.optional_field_selector)))
        self._buffer = bytearray()
        self._opened: float | None = None

    def health(self, now: float) -> Health:
        """Return the health. A watch that has been open for a moment is healthy, even without events."""
        if self._opened is not None and not self.broken and now - self._opened >= BRIEF:
            self._contact.record_answer()
        return self._contact.health

    def next_action(self, chance: float) -> Action:
        """Return the next action; `chance` is a random number in [0, 1). Each wait is returned once."""
        wait = self._contact.take_wait(chance)
        if wait is not None:
            return Sleep(wait)
        self._buffer.clear()
        self.broken, self._opened = False, None
        selectors = (("labelSelector", self.resource.label_selector), ("fieldSelector", self._field_selector))
        query = tuple((key, value) for key, value in selectors if value)
        if self._version:
            return self._watch_request(query, chance)
        if self._chunked:
            query = (*query, ("limit", str(PAGE_SIZE)))
        if self._token:
            query = (*query, ("continue", self._token))
        return WatchRequest(self.resource.url, query, watch=False, timeout=60.0)

    def _watch_request(self, query: tuple[tuple[str, str], ...], chance: float) -> WatchRequest:
        seconds = int(LEAST_WATCH * (1 + chance))
        watch = (
            ("watch", "true"),
            ("resourceVersion", self._version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(seconds)),
        )
        return WatchRequest(self.resource.url, (*query, *watch), watch=True, timeout=seconds + 30.0)

    def handle_page(self, body: bytes | bytearray, now: float) -> list[EventOf[K, T]]:
        """Handle the answer to a list request; return the event `Listed` with the last chunk."""
        try:
            if body.count(b",") >= MOST_OBJECTS:
                _count_items(body)
            page = self._page.decode(body)
        except BROKEN as error:
            return self._relist_later(f"list: {error}", now)
        meta = page.metadata or wire.ListMeta()
        if not meta.resource_version:
            return self._relist_later("list: an answer without metadata.resourceVersion", now)
        items = page.items or ()
        self._bytes += len(body)
        self._objects += max(len(items), _LEAST_PAGE)
        if self._bytes > LONGEST_LIST or self._objects > MOST_OBJECTS:
            return self._relist_later(f"list: more than {LONGEST_LIST >> 30} GiB or {MOST_OBJECTS:,} objects", now)
        nameless = 0
        for index, raw in enumerate(items):
            reading = self._reader.read(raw, f"items[{index}]")
            nameless += reading.name is None
            if nameless > MOST_NAMELESS:
                return self._relist_later(f"list: more than {MOST_NAMELESS:,} objects without a name", now)
            self._problems.extend(reading.problems)
            if reading.name is not None and reading.object is not None:
                self._found[reading.name] = reading.object
        self._token = meta.continue_token or ""
        return [] if self._token else [self._build_listed_event(meta.resource_version, now)]

    def _build_listed_event(self, version: str, now: float) -> Listed[K, T]:
        event = Listed(self.resource.kind, tuple(self._found.values()), tuple(self._problems))
        self._known = set(self._found)
        self._restart()
        self._chunked, self._absent, self._just_listed = True, False, True
        self._contact.record_list()
        if reason := self._describe_older_version(version):
            self._contact.record_failure(f"list: {reason}", now)
        self._version, self._highest = version, _parse_version(version)
        return event

    def _describe_older_version(self, version: str) -> str:
        """Return the reason if a version is lower than one seen before, else ""."""
        number = _parse_version(version)
        if not 0 < number < self._highest:
            return ""
        return f"resourceVersion {number} after {self._highest}: an administrator restored the server's store"

    def handle_open(self, now: float) -> None:
        """Handle the beginning of a watch's answer."""
        self._opened, self._just_listed, self._heard = now, False, False

    def handle_bytes(self, data: bytes, now: float) -> list[EventOf[K, T]]:
        """Handle bytes of a watch's answer, cut anywhere. Stop reading once `broken` is set."""
        if self.broken:
            return []
        head, newline, tail = data.rpartition(b"\n")
        if not newline:
            self._buffer += data
            if len(self._buffer) > LONGEST_LINE:
                self._relist_later(f"watch: a line of more than {LONGEST_LINE} bytes", now)
            return []
        lines = (bytes(self._buffer) + head).split(b"\n")
        self._buffer[:] = tail
        events: list[EventOf[K, T]] = []
        for line in lines:
            if line.strip() and not self.broken:
                events.extend(self._decode_event(line, now))
        return events

    def handle_end(self, now: float) -> None:
        """Handle the end of a watch's answer, orderly or not; the next watch repeats an unfinished line."""
        if self.broken:
            return
        if self._opened is not None and now - self._opened >= BRIEF:
            self._contact.record_progress()
            if not self._heard and now - self._opened >= LEAST_WATCH - BRIEF:
                self._relist()
        else:
            self._fail("watch: ended at once", now)

    def handle_failure(self, reason: str, now: float) -> None:
        """Handle a request without an answer, or a broken connection."""
        self._chunked = True  # an answer too long in one piece may fit in several
        self._fail(f"{'watch' if self._version else 'list'}: {reason}", now)

    def handle_refusal(self, code: int, body: bytes, now: float, retry_after: float = 0.0) -> list[EventOf[K, T]]:
        """Handle an HTTP status other than 200; `retry_after` is that header in seconds."""
        try:
            status = self._status.decode(body)
        except BROKEN:
            status = wire.Status()
        return self._handle_refusal(code, status, now, retry_after)

    def _handle_refusal(self, code: int, status: wire.Status, now: float, retry_after: float) -> list[EventOf[K, T]]:
        what = "watch" if self._version else "list"
        reason = f"{what}: {code} {status.message or status.reason or ''}".rstrip()
        if code == 410 or status.reason in ("Expired", "Gone"):
            self._handle_expired_version(reason, now)
        elif code == 400 and self._field_selector != self.resource.field_selector:
            self._field_selector = self.resource.field_selector
            self._relist()
        elif code in (403, 404) and self._may_be_absent():
            return self._count_as_empty(reason)
        else:
            self._fail(reason, now, retry_after)
        return []

    def _handle_expired_version(self, reason: str, now: float) -> None:
        if self._token:
            # The server forgot that version before the last chunk; in one piece that cannot happen.
            self._chunked = False
        elif self._just_listed or (self._opened is not None and now - self._opened < BRIEF):
            self._fail(reason, now)
        self._relist()

    def _may_be_absent(self) -> bool:
        """Report whether the server may lack the kind. A refusal after a successful list means an outage."""
        return self.resource.optional and (self._absent or not self._contact.health.synced)

    def _count_as_empty(self, reason: str) -> list[EventOf[K, T]]:
        events: list[EventOf[K, T]] = [] if self._absent else [Listed(self.resource.kind, ())]
        self._absent = True
        self._relist()
        self._contact.record_missing_kind(reason)
        return events

    def _decode_event(self, line: bytes, now: float) -> list[EventOf[K, T]]:
        try:
            event = self._line.decode(line)
        except BROKEN as error:
            return self._relist_later(f"watch: {error}", now)
        match event.type:
            case "ADDED" | "MODIFIED" | "DELETED":
                return self._read_event(event, now)
            case "BOOKMARK":
                self._advance(self._reader.read(event.object, "bookmark").version, now)
                return []
            case "ERROR":
                return self._handle_stream_error(event.object, now)
        return self._relist_later(f"watch: an event of unknown type {event.type[:40]!r}", now)

    def _read_event(self, event: wire.WatchEvent, now: float) -> list[EventOf[K, T]]:
        reading = self._reader.read(event.object, "watch")
        if reading.name is None:
            return self._relist_later("watch: an object without a name", now)
        if not self._advance(reading.version, now):
            return []
        self._contact.record_answer()
        if event.type == "DELETED":
            return self._delete_object(reading.name, ())
        if reading.object is None:
            return self._delete_object(reading.name, reading.problems)
        self._known.add(reading.name)
        if len(self._known) > MOST_OBJECTS:
            return self._relist_later(f"watch: more than {MOST_OBJECTS:,} objects", now)
        return [Upserted(reading.object, reading.problems)]

    def _advance(self, version: str, now: float) -> bool:
        """Record the version of a watch's event; report whether the watch goes on."""
        self._heard = True
        if reason := self._describe_older_version(version):
            self._highest = 0  # so that the list does not report it again
            self._relist_later(f"watch: {reason}", now)
            return False
        self._version, self._highest = version or self._version, max(self._highest, _parse_version(version))
        return True

    def _delete_object(self, name: ObjectName, problems: tuple[Problem, ...]) -> list[EventOf[K, T]]:
        """Return the deletion of a known object that is gone or ignored from now on."""
        if name not in self._known and not problems:
            return []
        self._known.discard(name)
        return [Deleted(self.resource.kind, name, problems)]

    def _handle_stream_error(self, raw: msgspec.Raw, now: float) -> list[EventOf[K, T]]:
        try:
            status = self._status.decode(raw)
        except BROKEN as error:
            return self._relist_later(f"watch: {error}", now)
        code = status.code or 0
        if code in (410, 429) or code >= 500 or status.reason in ("Expired", "Gone"):
            self.broken = True
            return self._handle_refusal(code, status, now, 0.0)
        return self._relist_later(f"watch: {code} {status.message or status.reason or 'error'}", now)

    def _relist_later(self, reason: str, now: float) -> list[EventOf[K, T]]:
        self.broken = True
        self._fail(reason, now)
        self._relist()
        return []

    def _relist(self) -> None:
        self._version = ""
        self._restart()

    def _restart(self) -> None:
        self._token = ""
        self._found, self._problems = {}, []
        self._objects = self._bytes = 0

    def _fail(self, reason: str, now: float, retry_after: float = 0.0) -> None:
        if self._opened is not None and now - self._opened >= BRIEF:
            self._contact.record_progress()
        self._contact.record_failure(reason, now, retry_after)
        self._opened = None


def _parse_version(version: str) -> int:
    """Return a version as a number, as clients may compare them (KEP-5504); 0 if it is none."""
    return int(version) if version.isascii() and version.isdecimal() and len(version) < _LONGEST_NUMBER else 0


def _count_items(body: bytes | bytearray) -> None:
    """Raise ValueError for a page of more than `MOST_OBJECTS` items, before msgspec stores 100 bytes for each."""
    places = iter(range(MOST_OBJECTS))

    class Item(msgspec.Struct, gc=False):
        def __post_init__(self) -> None:
            if next(places, None) is None:
                raise ValueError(f"more than {MOST_OBJECTS:,} objects")

    class Page(msgspec.Struct, gc=False):
        items: list[Item] | None = None

    msgspec.json.decode(body, type=Page)
