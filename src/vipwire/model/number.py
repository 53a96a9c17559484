"""Whole numbers that clients and operators write."""

from typing import Final

_MOST_DIGITS: Final = 20


def whole_number(text: str, least: int, most: int) -> int | None:
    """Read ASCII digits as a number between bounds, None for any other text.

    Python's int() reads digits of every script, signs and underscores, and raises ValueError for 4,301 digits.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None


def port_number(text: str) -> int | None:
    """Read a port, 1 to 65535."""
    return whole_number(text, 1, 65535)
