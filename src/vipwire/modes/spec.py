"""The interface of a mode to the rest of vipwire: its ModeSpec and its Driver.

    ModeSpec    values only, in modes/<mode>/mode.py: cheap to import, so that all modes can be compared
    Driver      the actions, in the module that `ModeSpec.driver` names: imported when the mode is used

No mode knows another. vipwire passes facts about other modes in these types.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from msgspec import field

from vipwire.config.configuration import Config
from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.model.problem import Problem
from vipwire.model.sysctl import Sysctl
from vipwire.model.value import Value
from vipwire.plan.annotations import ForwardingMethod, Lack
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Rendered
from vipwire.reconcile.counts import Counts

if TYPE_CHECKING:
    from vipwire.modes.xtables.ownership import RuleOwner
    from vipwire.modes.xtables.save import ChainName


class Supposed(Protocol):
    """Renders a mode's objects, also on a machine that cannot run the mode."""

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]: ...

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]: ...

    def close(self) -> None: ...


class Mode(Backend[Any, Any], Protocol):
    """A running mode for one family. Every mode implements all of this; `reconcile.backend` has optional parts."""

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        """List the wishes of a Service that this mode cannot fulfil, with the substitute. Pure."""

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read the kernel's counts for these plans' Services; `endpoints` as in `Counts`.

        The plans are those of the kernel's objects; `vipwire status` may pass one Service only.

        A separate thread calls this, also during observe or commit, so that a scrape delays no sync: the mode opens a
        separate socket or process and touches no mutable state. Reading needs no write privilege. Raise OSError or
        CommitError if the kernel cannot be read; return empty counts if no object of the mode exists.
        """

    def housekeeping_due(self) -> float | None:
        """Return the seconds until the next `housekeep`; None if none is due."""

    def housekeep(self) -> None:
        """Run due work between syncs, such as removing drained objects. Raise OSError or VipwireError."""

    def describe(self, key: Any) -> str: ...

    def close(self) -> None:
        """Close the sockets; the kernel's objects stay."""

    def delete(self) -> bool:
        """Remove all objects of this mode and family; report whether any existed."""


class Difference(NamedTuple):
    """A behaviour of other modes that this one lacks.

    `sentences` are those of docs/semantics.md that do not hold; `what` describes the users' view, `why` the reason:
    whole sentences, which the page of modes prints.
    """

    sentences: tuple[str, ...]
    what: str
    why: str


class Tool(NamedTuple):
    """A program of a mode: its purpose, and whether the mode needs it."""

    name: str
    purpose: str
    needed: bool = False


class NatPriorities(NamedTuple):
    """The priorities of a mode's nat chains at prerouting and output, and its nftables table.

    Foreign nat chains with equal or smaller priorities decide first. The default is iptables'. `source` is the
    priority of the masquerading chains at input and postrouting.
    """

    prerouting: int = -100
    output: int = -100
    table: str = ""
    source: int = 100


BEHIND_ALL: Final = 1 << 31
"""The priority of a mode that acts after all nat chains of a hook."""
MASQUERADES_NOTHING: Final = -BEHIND_ALL
"""The priority `source` of a mode that changes no source address."""


def _always_writes_rules(_: Config) -> bool:
    return False


class RemovalResult(Value, frozen=True):
    """The removed leftovers of one look, and those that wait for their connections to end. In words."""

    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Remains:
    """The leftovers of one mode in one family, except iptables rules; see `proxy.handover.leftovers`.

    vipwire asks again while a leftover waits. A mode overrides what it has to do.
    """

    def remove_before_rules(self) -> RemovalResult:
        """Find leftovers, and remove those that must go before other modes' rules.

        Raise CommitError, OSError or UnsupportedError if the kernel refuses.
        """
        return RemovalResult()

    def list_held_chains(self) -> "frozenset[ChainName]":
        """Return the chains of this mode that must stay while the leftovers of `remove_before_rules` are in use."""
        return frozenset()

    def remove_after_rules(self) -> RemovalResult:
        """Remove the leftovers that can go after the rules. Raise the errors of `remove_before_rules`."""
        return RemovalResult()


class ModeSpec(Value, frozen=True):
    """The description of a mode.

    `driver` names the module with its DRIVER, `inspection` that with its INSPECTION. `fallback` lists the modes
    to try instead, in order. `for_whom` and `page` are for the page that compares modes. `differences` lists
    sentences of docs/semantics.md that do not hold, `lacks` unsupported annotations, `metrics` those that not
    every mode has, `tools` programs of people or the mode. `includes` names modes whose rules are part of this one.

    `direct`: local clients may connect to endpoints directly, unseen by connection tracking. `port_ranges`: the mode
    supports the annotation port-range. `per_address`: the mode has objects for each node address. `relays`: the proxy
    is the endpoint's client, and node ports are sockets. `terse`: with very many endpoints, the mode writes less
    about each. `without_rules` tells whether a configuration needs no rules, and so no CAP_NET_ADMIN; `way_out` says
    how to get there.
    """

    name: str
    driver: str
    inspection: str
    settings: ModeSettings
    for_whom: str
    page: str
    fallback: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    lacks: tuple[Lack, ...] = ()
    metrics: frozenset[MetricGroup] = frozenset()
    tools: tuple[Tool, ...] = ()
    port_ranges: bool = False
    includes: tuple[str, ...] = ()
    direct: bool = False
    per_address: bool = False
    relays: bool = False
    terse: bool = False
    without_rules: Callable[[Config], bool] = field(default=_always_writes_rules)
    way_out: str = ""


class ModeBuilder(Protocol):
    """Builds a mode for each family."""

    def __call__(self, config: Config, families: Iterable[Family], *, prepare: bool) -> Mapping[Family, Mode]:
        """Build the mode. With `prepare` it may change the machine, without it only reads.

        Raise UnsupportedError with the missing feature if this machine cannot run the mode.
        """


class Cleaners(Protocol):
    """Builds the removers of a mode's leftovers on this machine, for any former settings."""

    def __call__(self, families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        """Build the removers; without `rules`, only those that need no privilege.

        Empty if this machine cannot run the mode.
        """


class Driver(Value, frozen=True):
    """The actions of a mode. No field has a default, so each mode decides about every action."""

    build: ModeBuilder
    supposed: Callable[[Config, Iterable[Family]], Mapping[Family, Supposed]]
    """Builds the renderer. Raises UnsupportedError if this machine cannot even render."""
    attempt: Callable[[Config, Iterable[Family]], None]
    """Tries changes on the kernel and takes them back. Raises UnsupportedError, like `build`, if refused."""
    sysctls: Callable[[Config], tuple[Sysctl, ...]]
    """Lists the sysctls of the mode."""
    priorities: NatPriorities
    """The hooks' priorities at which the mode decides about a connection, if it writes rules."""
    kernel_counters: Mapping[str, Callable[[], float | None]]
    """Reads the kernel's counters for the mode, by the name of the metric."""
    cleaners: Cleaners
    owner: "Callable[[Family], RuleOwner | None]"
    """Returns the owner of the mode's iptables chains; None if it writes none."""
    remains: Callable[[Family, ModeSpec], Remains | None]
    """Returns the finder of the mode's leftovers beside iptables rules, while another mode runs."""
    translates: Callable[[Family], bool]
    """Reports whether an object of the mode beside iptables rules translates now. Raises OSError if unknown."""
    wrap_backend: "Callable[[Backend[Any, Any], Others], Backend[Any, Any]]"
    """Returns the reconciler's backend: the given one, or a wrapper, such as one that leaves no gap beside others."""


def clean_by(build: ModeBuilder) -> Cleaners:
    """Return the cleaners of a mode whose leftovers are only its Modes' objects."""

    def cleaners(families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        if not rules:
            return ()
        try:
            return build(Config(), families, prepare=False).items()
        except UnsupportedError:
            return ()

    return cleaners


class Others(Protocol):
    """The other modes on this node, for a mode that starts."""

    def find_translating(self) -> frozenset[ModeSpec]:
        """Return the modes that translate now. Raise CommitError or OSError if unknown."""

    def disarm(self) -> None:
        """Remove the rules of other modes that drop packets without their own translation."""


ONLY_IN_USERSPACE: Final = Lack("proxy_protocol", "is in userspace mode only: endpoints get no header")


def only_in_ipvs(instead_of_forwarding: str) -> tuple[Lack, ...]:
    """List the annotations that only ipvs mode supports.

    The argument describes how another mode brings packets to endpoints.
    """
    return (
        Lack("scheduler", "is in ipvs mode only: vipwire.io/algorithm chooses endpoints"),
        Lack("scheduler_flags", "is in ipvs mode only"),
        Lack("hash_flags", "is in ipvs mode only"),
        Lack(
            "forwarding",
            f"is in ipvs mode only: {instead_of_forwarding}",
            (ForwardingMethod.DIRECT, ForwardingMethod.TUNNEL),
        ),
        Lack("drain_seconds", "is in ipvs mode only: connections stay open until their end"),
    )
