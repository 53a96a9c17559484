"""Text in the data of a Secret, which is base64 there. Pure."""

import base64
import binascii
from collections.abc import Mapping

from vipwire_up.api.objects.cells import at
from vipwire_up.api.objects.resource import Object


def encoded(data: Mapping[str, str]) -> dict[str, str]:
    """Write texts as a Secret's data."""
    return {name: base64.b64encode(text.encode()).decode() for name, text in data.items()}


def text_of(secret: Object, name: str) -> str:
    """Read one text; "" for one that is not there or none."""
    try:
        return base64.b64decode(str(at(secret, "data", name) or ""), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def lines_of(secret: Object, name: str) -> list[str]:
    """Read the lines of one text."""
    return text_of(secret, name).splitlines()
