"""The Driver of iptables mode."""

from collections.abc import Iterable, Mapping
from typing import Final

from vipwire.config.configuration import Config
from vipwire.logging import log
from vipwire.model.net import Family
from vipwire.modes.iptables import build as iptables
from vipwire.modes.iptables.nfacct import read_counter
from vipwire.modes.iptables.rules.names import INVALID_COUNTER, LOCALHOST_COUNTER
from vipwire.modes.iptables.rules.ownership import IptablesOwner
from vipwire.modes.iptables.rules.settings import RuleSettings
from vipwire.modes.spec import Driver, Mode, NatPriorities


def _build(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    """Build the backends; with `prepare`, log the notes for the operator."""
    wanted = RuleSettings(
        localhost_node_ports=config.iptables.localhost_node_ports,
        drop_invalid=not config.conntrack.tcp_be_liberal,
        tree=config.iptables.tree,
        by_tools=config.iptables.by_tools,
    )
    built, notes = iptables.build(families, wanted, prepare=prepare)
    for note in notes if prepare else ():
        say = log.warning if note.remedy else log.info
        say("iptables", what=note.what, reason=note.reason, remedy=note.remedy)
    return built


def _cleaners(families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
    return [(each.family, each) for each in iptables.leftovers(families)] if rules else []


DRIVER: Final = Driver(
    build=_build,
    supposed=lambda config, families: _build(config, families, prepare=False),
    attempt=lambda _config, _families: None,
    sysctls=lambda config: iptables.LOOPBACK_SYSCTLS if config.iptables.localhost_node_ports else (),
    priorities=NatPriorities(),
    kernel_counters={
        "iptables_ct_state_invalid_dropped_packets_total": lambda: read_counter(INVALID_COUNTER),
        "iptables_localhost_nodeports_accepted_packets_total": lambda: read_counter(LOCALHOST_COUNTER),
    },
    cleaners=_cleaners,
    owner=lambda _: IptablesOwner(),
    remains=lambda _family, _running: None,
    translates=lambda _: False,
    before_first_commit=lambda backend, _others: backend,
)
