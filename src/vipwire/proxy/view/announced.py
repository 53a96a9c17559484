"""The LoadBalancer addresses that this machine announces, for `vipwire view`: announced-NETNS.json in --state-dir.

Who announces writes the file anew when an address begins or ends, or when another machine turns out to have it. It
says something only while the proxy of the namespace runs.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from vipwire.process import log
from vipwire.process.files import replace_file, state_file


class AnnouncedAddress(msgspec.Struct, frozen=True, omit_defaults=True):
    """An address: on which interface it is announced, and which other machine has it, by its hardware address."""

    interface: str
    here: bool = True
    other: str = ""


_READER = msgspec.json.Decoder(dict[str, AnnouncedAddress])


def announced_file(state_dir: str) -> Path:
    """Name the file of this network namespace."""
    return state_file(state_dir, "announced", "json")


def write_announced(path: Path, addresses: Mapping[str, AnnouncedAddress]) -> None:
    """Replace the file as a whole. Where it cannot be written, only the page lacks it."""
    try:
        replace_file(path, msgspec.json.encode(addresses))
    except OSError as error:
        log.detail(2, "announced addresses cannot be written", path=path, error=error)


def read_announced(path: Path) -> dict[str, AnnouncedAddress]:
    """Read what is announced; nothing where nothing can be read."""
    try:
        return _READER.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
