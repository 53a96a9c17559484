"""The modes that can be chosen: a new one is a folder, and one more line here.

A line names the module that says all about a mode, as its `MODE`. The layers below the modes ask it only for what an
operator can configure and which metrics it has, `Registered`; `vipwire.modes.registry` has the rest. A module is
imported when somebody asks for its mode: what is not used costs nothing.
"""

import contextlib
import enum
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Final, Protocol

from vipwire.model.value import Value

_MODULES: Final[dict[str, str]] = {
    "nftables": "vipwire.modes.nftables.mode",
    "iptables": "vipwire.modes.iptables.mode",
    "ipvs": "vipwire.modes.ipvs.mode",
    "userspace": "vipwire.modes.userspace.mode",
    "ebpf": "vipwire.modes.ebpf.mode",
}
DEFAULT: Final = "nftables"
"""The mode where none is named."""


class MetricGroup(enum.Enum):
    """Metrics that only some modes have: kube-proxy's, by what they count."""

    FULL_AND_PARTIAL_SYNCS = "full and partial syncs"
    NFTABLES_TRANSACTIONS = "transactions of nftables"
    IPTABLES_RESTORE = "failures of iptables-restore"
    IPTABLES_RULES = "rules of iptables"
    CONNECTION_TRACKING = "stale entries of connection tracking"


class ModeSettings(Value, frozen=True):
    """The part of the configuration that a mode reads.

    `periods` and `masquerading` are the sections, by their names in the file, that have the periods of its syncs and
    its settings of masquerading. `primary_node_ports`: where
    nodePortAddresses is empty, node ports are served at the node's primary addresses, else at all of them.
    """

    periods: str
    masquerading: str
    primary_node_ports: bool = False


class Registered(Protocol):
    """What the layers below the modes must know of a mode's `MODE`."""

    @property
    def settings(self) -> ModeSettings:
        """The part of the configuration that it reads."""

    @property
    def metrics(self) -> frozenset[MetricGroup]:
        """The metrics that it has beside those of every mode."""


def mode_names() -> tuple[str, ...]:
    """Name the modes, the default first."""
    return tuple(_MODULES)


@cache
def registered(name: str) -> Registered:
    """Find what a mode's module says. Raise KeyError for a mode that is not registered."""
    found: Registered = import_module(_MODULES[name]).MODE
    return found


@contextlib.contextmanager
def registering(name: str, module: str) -> Iterator[None]:
    """Register one more mode for as long as the context lasts: for tests, and to try a mode from elsewhere."""
    _MODULES[name] = module
    try:
        yield
    finally:
        del _MODULES[name]
        registered.cache_clear()
