"""Builds the selected mode and answers questions about it for the rest of the proxy.

If this machine cannot run a mode, UnsupportedError says what is missing. With `--proxy-mode-fallback` the next mode
of `ModeSpec.fallback` starts, as in old kube-proxy. Without the flag the proxy ends, as today's kube-proxy does.
vipwire finds out by trying.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path

from vipwire.config.configuration import Config
from vipwire.errors import UnsupportedError
from vipwire.linux.host.kernel import require_net_admin
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.registry import find_selected_mode, load_driver
from vipwire.modes.spec import Mode


def find_usable_families() -> tuple[Family, ...]:
    """Return this machine's IP families: the kernel may lack IPv6, or boot options disable it."""
    return (Family.IPV4, Family.IPV6) if Path("/proc/net/if_inet6").exists() else (Family.IPV4,)


def build_modes(config: Config, families: Iterable[Family], *, prepare: bool = False) -> dict[Family, Mode]:
    """Build the selected mode for each family, or raise UnsupportedError. `prepare`: the caller will run it."""
    return dict(load_driver(find_selected_mode(config)).build(config, families, prepare=prepare))


def needs_net_admin(config: Config) -> bool:
    """Report whether the selected mode writes rules: some modes can be told to work without."""
    return not find_selected_mode(config).without_rules(config)


Build = Callable[[Config, Iterable[Family]], dict[Family, Mode]]
"""Builds the configured mode for each family, or raises UnsupportedError."""


def build_mode(config: Config, families: Iterable[Family], build: Build) -> tuple[Config, dict[Family, Mode]]:
    """Build the configured mode, or with the fallback the first successor that works.

    Return the configuration of the resulting mode. Raise UnsupportedError with every reason if no mode works.
    """
    reasons: list[str] = []
    ladder = (config.proxy_mode, *(find_selected_mode(config).fallback if config.proxy_mode_fallback else ()))
    for at, mode in enumerate(ladder):
        wanted = config if at == 0 else dataclasses.replace(config, mode=mode)
        try:
            return wanted, build(wanted, families)
        except UnsupportedError as error:
            reasons.append(str(error))
            if at + 1 < len(ladder):
                _log_fallback(mode, ladder[at + 1], error)
    raise UnsupportedError("\n".join(dict.fromkeys(reasons)))


def _log_fallback(mode: str, after: str, error: UnsupportedError) -> None:
    log.warning(
        "falling back",
        mode=mode,
        to=after,
        reason=error,
        remedy=f"follow the reason and restart, or choose the mode: --proxy-mode={after}",
    )


def build_modes_to_run(config: Config, families: Iterable[Family]) -> dict[Family, Mode]:
    """Build a mode to run. Raise UnsupportedError if this machine cannot run it or privileges are missing."""
    if needs_net_admin(config):
        require_net_admin("vipwire proxy", way_out=find_selected_mode(config).way_out)
    return build_modes(config, families, prepare=True)


def find_mode(config: Config) -> str:
    """Return the mode in which a configuration would run here. Raise UnsupportedError if no mode works."""
    found, modes = build_mode(config, find_usable_families(), build_modes_to_run)
    for mode in modes.values():
        mode.close()
    return found.proxy_mode
