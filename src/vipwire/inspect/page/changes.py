"""Reads the changes of Services that the proxy has written for the page; see `proxy_daemon.view`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from vipwire.proxy_daemon.view import KEPT, Change

_CHANGE_READER: Final = msgspec.json.Decoder(Change)


def read_changes(path: Path) -> list[Change]:
    """Read the last changes, oldest first; [] if unreadable. Skips truncated lines."""
    try:
        lines = path.read_bytes().splitlines()[-KEPT:]
    except OSError:
        return []
    return [change for line in lines if (change := _parse_change(line)) is not None]


def _parse_change(line: bytes) -> Change | None:
    try:
        return _CHANGE_READER.decode(line)
    except msgspec.DecodeError:
        return None


def change_document(change: Change) -> Mapping[str, object]:
    """Describe a change with the field names of documents."""
    return {
        "when": change.when,
        "family": change.family,
        "what": change.what,
        "service": change.service or None,
        "services": change.services,
        "joined": change.joined,
        "left": change.left,
        "secondsToKernel": change.waited,
        "syncSeconds": change.took,
        "about": change.about,
    }
