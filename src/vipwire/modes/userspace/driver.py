"""The Driver of userspace mode: chooses the variant of iptables, checks it, and builds the backends."""

from collections.abc import Iterable, Mapping
from typing import Final

from vipwire.config.configuration import Config
from vipwire.config.schema import parse_port_range
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.model.sysctl import Sysctl
from vipwire.modes.spec import MASQUERADES_NOTHING, Driver, Mode, NatPriorities
from vipwire.modes.userspace.kernel import LIMIT_SECONDS, PURPOSE, UserspaceBackend, open_commit_counter
from vipwire.modes.userspace.leftovers import RelayRemains
from vipwire.modes.userspace.mode import MODE
from vipwire.modes.userspace.ownership import UserspaceOwner
from vipwire.modes.userspace.settings import Bind, Choices
from vipwire.modes.xtables.choice import find_used_tools, first_accepted
from vipwire.modes.xtables.tool import PROGRAM, IptablesTool

_PROBE: Final = (
    "*nat\n:KUBE-PORTALS-PROBE - [0:0]\n"
    '-A KUBE-PORTALS-PROBE -p tcp -m comment --comment "a/b" -m tcp --dport 1 -m addrtype --dst-type LOCAL '
    "-m conntrack --ctstate NEW -j REDIRECT --to-ports 1\n"
    "-F KUBE-PORTALS-PROBE\n-X KUBE-PORTALS-PROBE\nCOMMIT\n"
)
"""Creates and deletes a rule in a chain without jumps to it, because kernels or containers may lack NAT."""


def choose_iptables_tool(family: Family, *, tried: bool) -> IptablesTool:
    """Choose the variant that this node uses; with `tried`, one in which this kernel accepts vipwire's rules.

    Raise UnsupportedError with both refusals if neither works.
    """
    tools, errors = find_used_tools(family, PURPOSE, limit=LIMIT_SECONDS)
    if not tools and not errors:
        raise UnsupportedError(
            f"{PURPOSE} needs {PROGRAM[family]}-restore, which is not installed: install the package iptables, "
            "or run without rules (--userspace-bind)"
        )
    chosen = first_accepted(tools, _PROBE, errors) if tried else next(iter(tools), None)
    if chosen is not None:
        return chosen
    raise UnsupportedError(
        f"{PURPOSE} needs NAT rules, and this kernel or user may not have them: {'; '.join(errors)}; "
        "load iptable_nat, xt_REDIRECT, xt_addrtype and xt_conntrack, give CAP_NET_ADMIN, "
        "or run without rules (--userspace-bind)"
    )


SYSCTLS = (Sysctl("net/ipv4/tcp_tw_reuse", 1),)
"""The relay is its endpoints' client: without this, 28,000 connections a minute to one endpoint use up all ports."""


def build_backends(families: Iterable[Family], choices: Choices, *, prepare: bool) -> dict[Family, UserspaceBackend]:
    """Build a backend for each family; with `prepare`, try rules and allow a start of relays.

    Raise UnsupportedError if this machine refuses the rules.
    """
    tools = {
        family: choose_iptables_tool(family, tried=prepare) if choices.bind is Bind.RULES else None
        for family in families
    }
    commits = open_commit_counter(tools.values())
    return {family: UserspaceBackend(family, choices, tool, commits, runs=prepare) for family, tool in tools.items()}


def build_leftover_backends(families: Iterable[Family], *, rules: bool = True) -> list[UserspaceBackend]:
    """Build the backends that remove this mode's leftovers, for any settings; without `rules` only relays."""
    choices = Choices() if rules else Choices(bind=Bind.NONE)
    return [UserspaceBackend(family, choices, None, runs=False) for family in families]


def _build_modes(config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
    ports = parse_port_range(config.port_range) or range(0)
    choices = Choices(
        bind=Bind(config.userspace_bind),
        ports=(ports[0], ports[-1]) if ports else (0, 0),
        udp_timeout=config.udp_idle_timeout,
        localhost_node_ports=config.iptables.localhost_node_ports,
    )
    return build_backends(families, choices, prepare=prepare)


DRIVER: Final = Driver(
    build=_build_modes,
    supposed=lambda config, families: _build_modes(config, families, prepare=False),
    attempt=lambda _config, _families: None,
    sysctls=lambda _: SYSCTLS,
    priorities=NatPriorities(source=MASQUERADES_NOTHING),
    kernel_counters={},
    # With rules=False, a cleaner only retires the relay, which needs no privilege.
    cleaners=lambda families, *, rules: [
        (left.family, left) for left in build_leftover_backends(families, rules=rules)
    ],
    owner=lambda _: UserspaceOwner(),
    remains=lambda family, running: None if running is MODE else RelayRemains(family),
    translates=lambda _: False,
    wrap_backend=lambda backend, _others: backend,
)
