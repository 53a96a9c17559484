"""The registry of modes: a new mode is a folder, and one more line here.

A line names the module that describes a mode, as its `MODE`. Layers below the modes see only its settings and
metrics, `Registered`; `vipwire.modes.registry` has the rest. A module is imported at the first use of its mode.
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
VIP_DEVICES: Final = {"kube-ipvs0": "ipvs"}
"""The devices whose addresses are VIPs, with their modes: a proxy in another mode does not import these."""


class MetricGroup(enum.Enum):
    """Metrics of kube-proxy that only some modes have, by the counted objects."""

    FULL_AND_PARTIAL_SYNCS = "full and partial syncs"
    NFTABLES_TRANSACTIONS = "transactions of nftables"
    IPTABLES_RESTORE = "failures of iptables-restore"
    IPTABLES_RULES = "rules of iptables"
    CONNECTION_TRACKING = "stale entries of connection tracking"


class ModeSettings(Value, frozen=True):
    """The part of the configuration that a mode reads.

    `periods` and `masquerading` are the names, in the file, of the sections with the mode's sync periods and
    masquerade settings. `primary_node_ports`: if nodePortAddresses is empty, the mode serves node ports at the node's
    primary addresses, else at all of them.
    """

    periods: str
    masquerading: str
    primary_node_ports: bool = False


class Registered(Protocol):
    """The part of a mode's `MODE` that layers below the modes know."""

    @property
    def settings(self) -> ModeSettings:
        """The part of the configuration that the mode reads."""

    @property
    def metrics(self) -> frozenset[MetricGroup]:
        """The metrics of the mode beside those of every mode."""


def list_mode_names() -> tuple[str, ...]:
    return tuple(_MODULES)


@cache
def find_registered(name: str) -> Registered:
    """Return the `MODE` of a mode's module. Raise KeyError for a mode that is not registered."""
    found: Registered = import_module(_MODULES[name]).MODE
    return found


@contextlib.contextmanager
def register_temporarily(name: str, module: str) -> Iterator[None]:
    """Register one more mode during the context: for tests, and for modes outside of vipwire."""
    _MODULES[name] = module
    try:
        yield
    finally:
        del _MODULES[name]
        find_registered.cache_clear()
