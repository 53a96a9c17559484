"""Which parts are silent, and since when."""

from typing import Any

import pytest

from vipwire.config.configuration import Config
from vipwire.file_io.files import SIGN_SECONDS
from vipwire.inspect.node import silence
from vipwire.inspect.node.silence import Silences, find_proxy_silence, format_silences
from vipwire.proxy_daemon.start.record import ProxyRecord, ProxyState

NOW = 1_000_000.0


def record(**given: Any) -> ProxyRecord:
    return ProxyRecord(7, NOW - 900, "0.1.0", "node-1", "nftables", **given)


@pytest.mark.parametrize(
    ("state", "found", "since", "why"),
    [
        (ProxyState.RUNNING, record(seen=NOW - SIGN_SECONDS), NOW, ""),
        (
            ProxyState.RUNNING,
            record(seen=NOW - 4 * SIGN_SECONDS),
            NOW - 4 * SIGN_SECONDS,
            "process 7 does not update its record",
        ),
        (ProxyState.DIED, record(seen=NOW - 5), NOW - 5, "the proxy was killed or crashed"),
        (
            ProxyState.ENDED,
            record(seen=NOW - 9, ended=NOW - 8, reason="SIGTERM"),
            NOW - 8,
            "the proxy ended (SIGTERM)",
        ),
        (ProxyState.NONE, None, NOW, ""),
    ],
)
def test_a_proxy_is_silent_since_its_last_sign(
    monkeypatch: pytest.MonkeyPatch, state: ProxyState, found: ProxyRecord | None, since: float, why: str
) -> None:
    monkeypatch.setattr(silence, "read_record", lambda _: (state, found))
    assert find_proxy_silence(Config(), NOW) == (since, why)


def test_the_first_error_of_a_row_is_the_beginning() -> None:
    silences = Silences()
    silences.record_error("objects", "Connection refused", NOW)
    silences.record_error("objects", "timed out", NOW + 5)
    (line,) = format_silences(silences.documents())
    assert line == (
        "objects: silent since 1970-01-12T13:46:40+00:00: timed out; Services and endpoints are of that time"
    )
    silences.record_error("objects", "", NOW + 6)
    assert silences.documents() == []
