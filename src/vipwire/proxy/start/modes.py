"""Builds the selected mode and asks it what the rest of the proxy needs to know, whichever mode it is.

A mode that this machine cannot run is an UnsupportedError that says what is missing. There is no silent fallback.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from vipwire.config.configuration import Config
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.registry import driver_of, every_spec, selected
from vipwire.modes.spec import Mode, Supposed

if TYPE_CHECKING:
    from vipwire.reconcile.explainer import Explainer


def build_modes(config: Config, families: Iterable[Family], *, prepare: bool = False) -> dict[Family, Mode]:
    """Build the selected mode for each family, or raise UnsupportedError. `prepare`: it is going to be run."""
    return dict(driver_of(selected(config)).build(config, families, prepare=prepare))


def suppose_modes(config: Config, families: Iterable[Family]) -> dict[Family, Supposed]:
    """Build what renders the selected mode's objects, which nobody is going to commit. Raise UnsupportedError."""
    return dict(driver_of(selected(config)).supposed(config, families))


def needs_net_admin(config: Config) -> bool:
    """Report whether the selected mode writes rules: some do without where they are told to."""
    return not selected(config).without_rules(config)


def mode_sysctls(config: Config) -> tuple[Sysctl, ...]:
    """Name the kernel settings that the selected mode wants."""
    return driver_of(selected(config)).sysctls(config)


def kernel_counters(config: Config) -> Mapping[str, Callable[[], float | None]]:
    """Return what reads the counters that the kernel keeps for the selected mode, by the name of the metric."""
    return driver_of(selected(config)).kernel_counters()


def build_explainer(config: Config, family: Family, mode: Mode) -> "Explainer[Any, Any, Any] | None":
    """Build what explains the selected mode's objects, as `mode` sees them; None where it has nothing of the kind."""
    return driver_of(selected(config)).explainer(family, mode)


def vip_devices() -> frozenset[str]:
    """Name the devices whose addresses are VIPs, not the machine's own, in whichever mode."""
    return frozenset[str]().union(*(spec.vip_devices for spec in every_spec()))
