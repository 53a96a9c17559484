"""The Driver of userspace mode."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from vipwire.config.checks import port_range
from vipwire.config.configuration import Config
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.spec import BEHIND_ALL, Driver, Mode, ModeSpec, Place
from vipwire.modes.userspace import build as userspace
from vipwire.modes.userspace.leftovers import RelayRemains
from vipwire.modes.userspace.mode import MODE
from vipwire.modes.userspace.ownership import UserspaceOwner
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.reconcile.explainer import Explainer


class UserspaceDriver(Driver):
    """Builds, explains and removes a relay and the rules that lead to it."""

    def build(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build it for each family; for one that is run rules are tried, and relays may be started."""
        ports = port_range(config.port_range) or range(0)
        choices = Choices(
            bind=Bind(config.userspace_bind),
            ports=(ports[0], ports[-1]) if ports else (0, 0),
            udp_timeout=config.udp_idle_timeout,
            localhost_node_ports=config.iptables.localhost_node_ports,
        )
        return userspace.build(families, choices, prepare=prepare)

    def sysctls(self, config: Config) -> tuple[Sysctl, ...]:
        """Name what a client of many endpoints needs."""
        del config
        return userspace.SYSCTLS

    def place(self, config: Config) -> Place:
        """Return where rules lead to the relay; without rules its sockets see what all nat chains have left."""
        return Place(BEHIND_ALL, BEHIND_ALL) if config.userspace_bind else Place()

    def explainer(self, family: Family, mode: Any) -> Explainer[Any, Any, Any]:
        """Build what explains a relay."""
        from vipwire.modes.userspace.explainer import UserspaceExplainer  # noqa: PLC0415  # not to run

        return UserspaceExplainer(family, mode.port_of)

    def cleaners(self, families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        """Build what has the relay retire, which needs no right, and with `rules` removes these."""
        return [(left.family, left) for left in userspace.leftovers(families, rules=rules)]

    def owner(self, family: Family) -> UserspaceOwner:
        """Return which chains are this mode's; their names are the same in both families."""
        del family
        return UserspaceOwner()

    def remains(self, family: Family, running: ModeSpec) -> RelayRemains | None:
        """Find the relay, unless this mode runs."""
        return None if running is MODE else RelayRemains(family)


DRIVER: Final = UserspaceDriver()
