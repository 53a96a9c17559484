"""Lets only one proxy run in a network namespace, whatever its mode: all modes serve the same VIPs.

`vipwire proxy` and `vipwire up` take it before they write anything; `vipwire cleanup` asks for it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from vipwire.config.configuration import Config
from vipwire.process.single_instance import AlreadyRunningError, Claim, Holder, claimed, find_holder
from vipwire.proxy.start.fallback import mode_here

PROXY: Final = "vipwire-proxy"


def claim_proxy(
    config: Config, command: str = "vipwire proxy", names: Iterable[str] = (), details: Iterable[str] = ()
) -> AbstractContextManager[Claim]:
    """Claim this network namespace, and further names. Raise AlreadyRunningError if another proxy has it.

    With `--takeover` that one ends first, unless this configuration cannot run here.
    """
    details = (f"{config.proxy_mode} mode", f"state directory {config.state_dir}", *details)
    ready = partial(mode_here, config) if config.takeover else None
    return claimed((PROXY, *names), command, details, ready=ready)


def running_proxy() -> Holder | None:
    """Find the proxy of this network namespace."""
    return find_holder(PROXY)


def require_none(what: str) -> None:
    """Raise AlreadyRunningError if a proxy runs here, which would undo `what`."""
    if (holder := running_proxy()) is not None:
        raise AlreadyRunningError(f"{what} is of no use while a proxy runs here: {holder}; {holder.remedy} first")
