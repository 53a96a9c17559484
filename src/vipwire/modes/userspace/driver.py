"""The Driver of userspace mode."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from vipwire.config.checks import port_range
from vipwire.config.configuration import Config
from vipwire.model.net import Family
from vipwire.modes.spec import Driver, Mode, ModeSpec, NatPriorities
from vipwire.modes.userspace import build as userspace
from vipwire.modes.userspace.leftovers import RelayRemains
from vipwire.modes.userspace.mode import MODE
from vipwire.modes.userspace.ownership import UserspaceOwner
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.reconcile.explainer import Explainer


def _build(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    """Build it; for one that is run rules are tried, and relays may be started."""
    ports = port_range(config.port_range) or range(0)
    choices = Choices(
        bind=Bind(config.userspace_bind),
        ports=(ports[0], ports[-1]) if ports else (0, 0),
        udp_timeout=config.udp_idle_timeout,
        localhost_node_ports=config.iptables.localhost_node_ports,
    )
    return userspace.build(families, choices, prepare=prepare)


def _explainer(family: Family, mode: Any) -> Explainer[Any, Any, Any]:
    from vipwire.modes.userspace.explainer import UserspaceExplainer  # noqa: PLC0415  # not to run

    return UserspaceExplainer(family, mode.port_of)


def _cleaners(families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
    """Build what has the relay retire, which needs no right, and with `rules` removes these."""
    return [(left.family, left) for left in userspace.leftovers(families, rules=rules)]


def _remains(family: Family, running: ModeSpec) -> RelayRemains | None:
    return None if running is MODE else RelayRemains(family)


DRIVER: Final = Driver(
    build=_build,
    supposed=lambda config, families: _build(config, families, prepare=False),
    attempt=lambda _config, _families: None,
    sysctls=lambda _: userspace.SYSCTLS,
    priorities=NatPriorities(),
    explainer=_explainer,
    remarks=lambda _: (),
    standing=lambda _: (),
    kernel_counters={},
    cleaners=_cleaners,
    owner=lambda _: UserspaceOwner(),
    remains=_remains,
    translates=lambda _: False,
    before_first_commit=lambda backend, _others: backend,
)
