"""A kube-proxy's configuration as it was found. Pure."""

from typing import Final, NamedTuple

from vipwire.config.configuration import Config

DEFAULT_MODE: Final = "iptables"
"""What kube-proxy runs where no mode is named."""


class Configured(NamedTuple):
    """A kube-proxy's configuration, and where it was found."""

    where: str
    config: Config

    @property
    def mode(self) -> str:
        """The mode that kube-proxy runs with it."""
        return self.config.mode or DEFAULT_MODE
