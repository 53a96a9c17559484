"""The parts that do not answer, and since when: the source of objects, the proxy, the kernel.

A view goes on with its last facts while a part is silent. It says so, and greys what depends on the part.
"""

import time
from typing import Any, Final

from vipwire.config.configuration import Config
from vipwire.file_io.files import SIGN_SECONDS
from vipwire.inspect.command.show import format_time
from vipwire.inspect.node.situation import Situation
from vipwire.inspect.node.source import describe_source_error
from vipwire.proxy_daemon.loop import Source
from vipwire.proxy_daemon.start.record import ProxyState, read_record

OBJECTS: Final = "objects"
PROXY: Final = "proxy"
KERNEL: Final = "kernel"
_SIGNS: Final = 3
"""Missing signs of a running proxy until it counts as silent."""


class Silences:
    """The silent parts, each with its error and the time (seconds since the epoch) since when it is silent."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}

    def record_error(self, part: str, error: str, since: float) -> None:
        """Note an error of a part, or by "" that the part answers. The first error of a row counts as its start."""
        if error:
            self._known[part] = self._known.get(part, (since, ""))[0], error
        else:
            self._known.pop(part, None)

    def record_source_error(self, source: Source, now: float) -> None:
        self.record_error(OBJECTS, describe_source_error(source), now)

    def record_kernel_errors(self, situation: Situation, now: float) -> None:
        for side in situation.sides:
            self.record_error(f"{KERNEL} {side.family.value}", side.obstacle, now)

    def record_proxy_silence(self, config: Config, now: float) -> None:
        since, error = find_proxy_silence(config, now)
        self.record_error(PROXY, error, since)

    def documents(self) -> list[dict[str, Any]]:
        return [
            {"part": part, "since": format_time(since), "error": error}
            for part, (since, error) in sorted(self._known.items())
        ]


def find_proxy_silence(config: Config, now: float) -> tuple[float, str]:
    """Return since when no proxy updates the kernel here, and why; "" if one does, or if none ever ran."""
    state, record = read_record(config.state_dir)
    if record is None:
        return now, ""
    if state is ProxyState.ENDED:
        return record.ended or record.seen, f"the proxy ended ({record.reason})"
    if state is ProxyState.DIED:
        return record.seen, "the proxy was killed or crashed"
    if now - record.seen > _SIGNS * SIGN_SECONDS:
        return record.seen, f"process {record.pid} does not update its record"
    return now, ""


def list_unread_objects(error: str) -> list[dict[str, Any]]:
    """Describe a source that has not answered yet: no object is known."""
    return [{"part": OBJECTS, "since": None, "error": error}]


EFFECTS: Final = {
    OBJECTS: "Services and endpoints are of that time",
    PROXY: "the kernel's rules are of that time",
    KERNEL: "its rules are unknown",
}


def format_silences(documents: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['part']}: unknown"
        if each["since"] is None
        else f"{each['part']}: silent since {each['since']}: {each['error']}; "
        f"{EFFECTS[each['part'].partition(' ')[0]]}"
        for each in documents
    ]


def find_silences(config: Config) -> list[dict[str, Any]]:
    """Describe a silent proxy, for a command that looks once."""
    silences = Silences()
    silences.record_proxy_silence(config, time.time())
    return silences.documents()
