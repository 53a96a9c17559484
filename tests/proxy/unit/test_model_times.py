"""Times as Kubernetes writes them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from vipwire.model.times import format_micro_time, format_time, parse_time, time_or_none

_MOMENT = datetime(2026, 11, 27, 17, 30, 5, 250, tzinfo=UTC)


def test_times_are_written_in_utc() -> None:
    elsewhere = _MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert format_time(elsewhere) == "2026-11-27T17:30:05Z"
    assert format_micro_time(elsewhere) == "2026-11-27T17:30:05.000250Z"


def test_what_is_written_is_read() -> None:
    assert parse_time(format_micro_time(_MOMENT)) == _MOMENT


@pytest.mark.parametrize("value", ["", "yesterday", "2026-11-27T17:30:05", None, 1764264605])
def test_a_value_that_is_no_time_with_a_zone_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"RFC 3339|isoformat"):
        parse_time(value)
    assert time_or_none(value) is None
