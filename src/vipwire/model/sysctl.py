"""A kernel setting: `conntrack` and the modes decide it, `host` applies it."""

import enum
from typing import NamedTuple


class Want(enum.Enum):
    """How the current value must compare with the wanted one."""

    EXACTLY = "exactly"
    AT_LEAST = "at least"
    EXACTLY_OR_MORE = "exactly, where it can be written; more is as good where it cannot"


class Sysctl(NamedTuple):
    """A file below `/proc/sys` (relative path) and its wanted number."""

    path: str
    value: int
    want: Want = Want.EXACTLY

    @property
    def name(self) -> str:
        """The name for sysctl(8) and /etc/sysctl.d: a dot in a path (`eth0.5`) becomes a slash."""
        return self.path.translate({ord("/"): ".", ord("."): "/"})
