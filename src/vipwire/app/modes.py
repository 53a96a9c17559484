"""The modes that can be chosen, and how each is built. A new mode is one more line here.

A mode that this machine cannot run is an UnsupportedError that says what is missing. There is no silent fallback.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vipwire.app.config import Config, ProxyMode
from vipwire.app.engine import Mode
from vipwire.backends.nftables.explain import NftablesExplainer
from vipwire.backends.nftables.kernel import NftablesBackend, Witness
from vipwire.errors import UnsupportedError
from vipwire.host.kernel import KernelRelease, require_nftables, require_release
from vipwire.model.net import Family
from vipwire.reconcile.explainer import Explainer


def _nftables(families: Iterable[Family]) -> dict[Family, Mode]:
    require_release(KernelRelease(5, 13), "nftables mode")
    require_nftables()
    witness = Witness()
    return {family: NftablesBackend(family, witness) for family in families}


_MODES: dict[ProxyMode, Callable[[Iterable[Family]], dict[Family, Mode]]] = {ProxyMode.NFTABLES: _nftables}
_EXPLAINERS: dict[ProxyMode, Callable[[Family], Explainer[Any, Any]]] = {ProxyMode.NFTABLES: NftablesExplainer}


def build_modes(config: Config, families: Iterable[Family]) -> dict[Family, Mode]:
    """Build the selected mode for each family, or raise UnsupportedError."""
    build = _MODES.get(config.proxy_mode)
    if build is None:
        here = ", ".join(mode.value for mode in _MODES)
        raise UnsupportedError(
            f"mode {config.proxy_mode.value!r} is not in this version of vipwire (--proxy-mode: {here}); "
            "leave the mode blank for the default"
        )
    return build(families)


def build_explainer(config: Config, family: Family) -> Explainer[Any, Any] | None:
    """Build what explains the selected mode's objects; None where the mode has nothing of the kind."""
    build = _EXPLAINERS.get(config.proxy_mode)
    return build(family) if build is not None else None


def every_mode(families: Iterable[Family]) -> Iterator[tuple[ProxyMode, Family, Mode]]:
    """Build every mode that this machine can run, to clean up after any of them."""
    for name, build in _MODES.items():
        with contextlib.suppress(UnsupportedError):
            for family, mode in build(families).items():
                yield name, family, mode
