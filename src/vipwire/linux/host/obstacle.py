"""Something that this machine does not allow and vipwire can do without: a value to be reported, not an error."""

from typing import NamedTuple


class Obstacle(NamedTuple):
    """Something that could not be set: what, why not, and what an operator can do about it."""

    what: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}; {self.remedy}"
