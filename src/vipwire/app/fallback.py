"""Which mode runs where the configured one cannot: with `--proxy-mode-fallback` the next one, else none.

As kube-proxy once did it: ipvs, iptables, userspace. Today's kube-proxy ends instead, and so do we unless told.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Final

from vipwire.app import log
from vipwire.app.config import Config, ProxyMode
from vipwire.app.engine import Mode
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family

NEXT: Final = {
    ProxyMode.EBPF: ProxyMode.NFTABLES,
    ProxyMode.NFTABLES: ProxyMode.IPTABLES,
    ProxyMode.IPVS: ProxyMode.IPTABLES,
    ProxyMode.IPTABLES: ProxyMode.USERSPACE,
}

Build = Callable[[Config, Iterable[Family]], dict[Family, Mode]]
"""Builds the configured mode for each family, or raises UnsupportedError."""


def settle_mode(config: Config, families: Iterable[Family], build: Build) -> tuple[Config, dict[Family, Mode]]:
    """Build the configured mode, or with the fallback the first after it that works.

    Return the configuration of the mode that runs. Raise UnsupportedError with every reason if none does.
    """
    wanted, reasons = config, list[str]()
    while True:
        try:
            return wanted, build(wanted, families)
        except UnsupportedError as error:
            reasons.append(str(error))
            after = NEXT.get(wanted.proxy_mode)
            if not config.proxy_mode_fallback or after is None:
                raise UnsupportedError("\n".join(reasons)) from error
            log.warning("falling back", mode=wanted.proxy_mode.value, to=after.value, reason=error)
            wanted = dataclasses.replace(wanted, mode=after.value)
