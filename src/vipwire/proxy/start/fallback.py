"""Chooses the mode that runs if the configured one cannot: with `--proxy-mode-fallback` the next one, else none.

As kube-proxy once did it: ipvs, iptables, userspace; with nftables beside iptables. Which comes next each mode says
itself. Today's kube-proxy ends instead, and so do we unless told. What a machine can do is found out by trying.
"""

import dataclasses
from collections.abc import Callable, Iterable

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.linux.host.rights import require_net_admin
from vipwire.model.net import Family
from vipwire.modes.registry import selected
from vipwire.modes.spec import Mode
from vipwire.process import log
from vipwire.proxy.start.machine import families
from vipwire.proxy.start.modes import build_modes, needs_net_admin

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
