"""Builds the selected mode, and asks it what the rest of the proxy needs to know, whichever mode it is.

A mode that this machine cannot run is an UnsupportedError that says what is missing. With `--proxy-mode-fallback` the
next one runs, as kube-proxy once did it: ipvs, iptables, userspace; with nftables beside iptables. Which comes next
each mode says itself. Today's kube-proxy ends instead, and so do we unless told. What a machine can do is found out
by trying.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.linux.host.rights import require_net_admin
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.registry import driver_of, every_spec, selected
from vipwire.modes.spec import Mode, Supposed

if TYPE_CHECKING:
    from vipwire.reconcile.explainer import Explainer


def families() -> tuple[Family, ...]:
    """Name the families of this machine: IPv6 may have been left out of its kernel or switched off at boot."""
    return (Family.IPV4, Family.IPV6) if Path("/proc/net/if_inet6").exists() else (Family.IPV4,)


def build_modes(config: Config, families: Iterable[Family], *, prepare: bool = False) -> dict[Family, Mode]:
    """Build the selected mode for each family, or raise UnsupportedError. `prepare`: it is going to be run."""
    return dict(driver_of(selected(config)).build(config, families, prepare=prepare))


def suppose_modes(config: Config, families: Iterable[Family]) -> dict[Family, Supposed]:
    """Build what renders the selected mode's objects, which nobody is going to commit. Raise UnsupportedError."""
    return dict(driver_of(selected(config)).supposed(config, families))


def needs_net_admin(config: Config) -> bool:
    """Report whether the selected mode writes rules: some do without where they are told to."""
    return not selected(config).without_rules(config)


def build_explainer(config: Config, family: Family, mode: Mode) -> "Explainer[Any, Any, Any] | None":
    """Build what explains the selected mode's objects, as `mode` sees them; None where it has nothing of the kind."""
    return driver_of(selected(config)).explainer(family, mode)


def vip_devices() -> frozenset[str]:
    """Name the devices whose addresses are VIPs, not the machine's own, in whichever mode."""
    return frozenset[str]().union(*(spec.vip_devices for spec in every_spec()))


Build = Callable[[Config, Iterable[Family]], dict[Family, Mode]]
"""Builds the configured mode for each family, or raises UnsupportedError."""


def settle_mode(config: Config, families: Iterable[Family], build: Build) -> tuple[Config, dict[Family, Mode]]:
    """Build the configured mode, or with the fallback the first after it that works.

    Return the configuration of the mode that runs. Raise UnsupportedError with every reason if none does.
    """
    reasons: list[str] = []
    ladder = (config.proxy_mode, *(selected(config).fallback if config.proxy_mode_fallback else ()))
    for at, mode in enumerate(ladder):
        wanted = config if at == 0 else dataclasses.replace(config, mode=mode)
        try:
            return wanted, build(wanted, families)
        except UnsupportedError as error:
            reasons.append(str(error))
            if at + 1 < len(ladder):
                _report(mode, ladder[at + 1], error)
    raise UnsupportedError("\n".join(dict.fromkeys(reasons)))


def _report(mode: str, after: str, error: UnsupportedError) -> None:
    log.warning(
        "falling back",
        mode=mode,
        to=after,
        reason=error,
        remedy=f"do what the reason says and restart, or choose it yourself: --proxy-mode={after}",
    )


def build_to_run(config: Config, families: Iterable[Family]) -> dict[Family, Mode]:
    """Build a mode that is going to be run. Raise UnsupportedError if it cannot be, also for lack of rights."""
    if needs_net_admin(config):
        require_net_admin("vipwire proxy", way_out=selected(config).way_out)
    return build_modes(config, families, prepare=True)


def mode_here(config: Config) -> str:
    """Find out in which mode a configuration would run here. Raise UnsupportedError if in none."""
    found, modes = settle_mode(config, families(), build_to_run)
    for mode in modes.values():
        mode.close()
    return found.proxy_mode
