"""Go's durations, by example."""

import pytest

from vipwire.config.kinds import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("0s", 0.0),
        ("24h0m0s", 86400.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("-2s", -2.0),
        ("+2s", 2.0),
        ("100us", 0.0001),
        ("100µs", 0.0001),
        ("1ns", 1e-9),
        ("2h22m", 8520.0),
    ],
)
def test_durations_are_read_as_go_reads_them(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "-", "s", "1x", "1s ", " 1s", "1s2", "1d", "--1s", "1..s", "\u0661s"])
def test_what_go_refuses_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 30s"):
        parse_duration(text)


def test_a_duration_that_go_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="292 years"):
        parse_duration("2562048h")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (30.0, "30s"),
        (86400.0, "24h0m0s"),
        (900.0, "15m0s"),
        (90.25, "1m30.25s"),
        (0.25, "250ms"),
        (0.0000015, "1.5µs"),
        (1e-9, "1ns"),
        (-2.0, "-2s"),
    ],
)
def test_durations_are_printed_as_go_prints_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
