"""The newest version of each document, numbered, and the documents that each browser has not received yet.

Only the event loop's thread uses it. A browser that reconnects gets the current state, not a history.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Final

Row = Mapping[str, Any]
Notice = tuple[str, Any]

PIECE: Final = 500
"""The most rows of one notice."""
_REMEMBERED: Final = 5000
SILENCE_SECONDS: Final = 5.0
"""Without a sign of life for about twice this time a browser takes the server for gone (files/stream.js)."""


class Board:
    """The newest rows and documents."""

    def __init__(self) -> None:
        self._version = 0
        self._rows: dict[str, tuple[int, Row]] = {}
        self._gone: deque[tuple[int, str]] = deque()
        self._forgotten = 0
        self._documents: dict[str, tuple[int, Any]] = {}
        self._news = asyncio.Event()

    def put_rows(self, rows: Iterable[Row]) -> None:
        """Replace all rows. Followers get only rows that differ from the last ones."""
        version, wanted = self._version + 1, {row["name"]: row for row in rows}
        for name in [name for name in self._rows if name not in wanted]:
            del self._rows[name]
            self._gone.append((version, name))
        for name, row in wanted.items():
            if name not in self._rows or self._rows[name][1] != row:
                self._rows[name] = version, row
        while len(self._gone) > _REMEMBERED:
            self._forgotten = self._gone.popleft()[0]
        self._wake_followers(version)

    def put_document(self, word: str, document: Any) -> None:
        """Replace a document. Followers get the document only if it differs from the last one."""
        if word not in self._documents or self._documents[word][1] != document:
            version = self._version + 1
            self._documents[word] = version, document
            self._wake_followers(version)

    def _wake_followers(self, version: int) -> None:
        self._version = version
        self._news.set()
        self._news = asyncio.Event()

    async def follow(self) -> AsyncGenerator[Notice | None, None]:
        """Yield the current documents, then changes; None after `SILENCE_SECONDS` without a change."""
        seen = -1
        while True:
            news, version = self._news, self._version
            for notice in self._collect_notices(seen):
                yield notice
            seen = version
            if self._version != version:
                continue
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    await news.wait()
            except TimeoutError:
                yield None

    def _collect_notices(self, seen: int) -> list[Notice]:
        anew = seen < self._forgotten or seen < 0
        if anew:
            seen = -1
        notices: list[Notice] = [
            (word, document) for word, (version, document) in self._documents.items() if version > seen
        ]
        rows = [row for version, row in self._rows.values() if version > seen]
        gone = [] if anew else [name for version, name in self._gone if version > seen and name not in self._rows]
        pieces = [rows[start : start + PIECE] for start in range(0, len(rows), PIECE)]
        if not pieces and (anew or gone):
            pieces = [[]]
        for number, piece in enumerate(pieces):
            first = number == 0
            last = number == len(pieces) - 1
            notices.append(
                ("rows", {"anew": anew and first, "last": last, "changed": piece, "gone": gone if first else []})
            )
        return notices
