"""The configuration found for a running kube-proxy. Pure."""

from typing import Final, NamedTuple

from vipwire.config.configuration import Config

DEFAULT_MODE: Final = "iptables"
"""kube-proxy's mode if the configuration names none."""


class Configured(NamedTuple):
    """A kube-proxy's configuration, and the place where vipwire found it."""

    where: str
    config: Config

    @property
    def mode(self) -> str:
        return self.config.mode or DEFAULT_MODE
