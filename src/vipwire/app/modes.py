"""The modes that can be chosen, and how each is built. A new mode is one more line here.

A mode that this machine cannot run is an UnsupportedError that says what is missing. There is no silent fallback.
"""

from collections.abc import Callable

from vipwire.app.config import Config, ProxyMode
from vipwire.app.engine import Mode
from vipwire.backends.nftables.kernel import NftablesBackend
from vipwire.errors import UnsupportedError
from vipwire.host.kernel import KernelRelease, require_nftables, require_release
from vipwire.model.net import Family


def _nftables(family: Family) -> Mode:
    require_release(KernelRelease(5, 13), "nftables mode")
    require_nftables()
    return NftablesBackend(family)


_MODES: dict[ProxyMode, Callable[[Family], Mode]] = {ProxyMode.NFTABLES: _nftables}


def build_mode(config: Config, family: Family) -> Mode:
    """Build the selected mode for one family, or raise UnsupportedError."""
    build = _MODES.get(config.proxy_mode)
    if build is None:
        here = ", ".join(mode.value for mode in _MODES)
        raise UnsupportedError(
            f"mode {config.proxy_mode.value!r} is not in this version of vipwire (--proxy-mode: {here}); "
            "leave the mode blank for the default"
        )
    return build(family)


def built_modes(family: Family) -> list[tuple[ProxyMode, Mode]]:
    """Build every mode that this machine can run: to clean up after any of them."""
    built: list[tuple[ProxyMode, Mode]] = []
    for mode, build in _MODES.items():
        try:
            built.append((mode, build(family)))
        except UnsupportedError:
            continue
    return built
