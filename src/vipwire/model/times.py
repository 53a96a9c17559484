"""Reads and writes times of the Kubernetes API: RFC 3339, in UTC. Pure."""

from datetime import UTC, datetime


def parse_time(text: object) -> datetime:
    """Read a time with a zone. Raise ValueError for any other value."""
    moment = datetime.fromisoformat(text) if isinstance(text, str) else None
    if moment is None or moment.tzinfo is None:
        raise ValueError(f"{text!r} is not a time (RFC 3339)")
    return moment


def time_or_none(text: object) -> datetime | None:
    """Read a time with a zone; None for any other value."""
    try:
        return parse_time(text)
    except ValueError:
        return None


def format_time(moment: datetime) -> str:
    """Format a metav1.Time: whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
