"""The LoadBalancer addresses that `vipwire up` announces on this machine, for the page of `vipwire view`.

`vipwire up` rewrites announced-NETNS.json in the state directory when an announcement begins or ends, or when the
address turns out to be on another machine. The file is valid only while the namespace's proxy runs.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from vipwire.file_io.files import build_state_path, replace_file
from vipwire.logging import log


class AnnouncedAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """An announced address: its interface, and the hardware address of another machine that has it."""

    interface: str
    here: bool = True
    other: str = ""


_ANNOUNCED_READER = msgspec.json.Decoder(dict[str, AnnouncedAddress])


def announced_file(state_dir: str) -> Path:
    return build_state_path(state_dir, "announced", "json")


def write_announced(path: Path, addresses: Mapping[str, AnnouncedAddress]) -> None:
    """Replace the file atomically. If it is not writable, only the page lacks the addresses."""
    try:
        replace_file(path, msgspec.json.encode(addresses))
    except OSError as error:
        log.detail(2, "announced addresses cannot be written", path=path, error=error)


def read_announced(path: Path) -> dict[str, AnnouncedAddress]:
    """Read the announced addresses; {} if unreadable."""
    try:
        return _ANNOUNCED_READER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
