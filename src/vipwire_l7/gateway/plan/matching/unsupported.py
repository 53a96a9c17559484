"""The error for a field that vipwire cannot serve. The rule answers 500 or is left out, and the status tells why."""

from vipwire.errors import VipwireError


class Unsupported(VipwireError):  # noqa: N818  # the route is at fault, not vipwire
    """A value that vipwire cannot serve. The text is the condition's message."""
