"""The lab's errors, for the user who started it."""

from vipwire.errors import VipwireError


class LabError(VipwireError):
    """The lab cannot be built, found or used as asked: names lab, host and remedy."""
