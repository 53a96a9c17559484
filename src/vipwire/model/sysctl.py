"""A setting of the kernel that is wanted: what `conntrack` and the modes decide and `host` puts in force."""

import enum
from typing import NamedTuple


class Want(enum.Enum):
    """The comparison of the present value with the wanted one."""

    EXACTLY = "exactly"
    AT_LEAST = "at least"
    EXACTLY_OR_MORE = "exactly, where it can be written; more is as good where it cannot"


class Sysctl(NamedTuple):
    """One file below `/proc/sys`, named by its path from there, and the number it should hold."""

    path: str
    value: int
    want: Want = Want.EXACTLY

    @property
    def name(self) -> str:
        """The name as sysctl(8) and /etc/sysctl.d write it: a dot in a path (`eth0.5`) becomes a slash."""
        return self.path.translate({ord("/"): ".", ord("."): "/"})
