"""The lab's errors, in words for the person who started it."""

from vipwire.errors import VipwireError


class LabError(VipwireError):
    """The lab cannot be built, found or used as asked: says which lab, which host, and what to do."""
