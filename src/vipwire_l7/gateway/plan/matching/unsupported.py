"""What a route asks for and cannot have: its status says so, and the rule answers 500 or is left out."""

from vipwire.errors import VipwireError


class Unsupported(VipwireError):  # noqa: N818  # it is about the route, not a failure of ours
    """A value that cannot be served, with the sentence for the status."""
