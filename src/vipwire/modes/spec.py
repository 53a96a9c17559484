"""The interface of a mode to the rest of vipwire: its ModeSpec and its Driver.

    ModeSpec    values only, in modes/<mode>/mode.py: cheap to import, so that all modes can be compared
    Driver      what acts, in the module that `ModeSpec.driver` names: imported when the mode is used

No mode knows another. What it must know of others, such as whose rules are in force, it is told in these words.
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
from vipwire.plan.annotations import Lack
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Backend, Rendered
from vipwire.reconcile.counts import Counts

if TYPE_CHECKING:
    from vipwire.modes.xtables.ownership import RuleOwner
    from vipwire.modes.xtables.save import ChainName
    from vipwire.reconcile.explainer import Explainer


class Supposed(Protocol):
    """What a mode would write: a mode that runs, or less than that where this machine cannot run it."""

    def render_node(self, node: NodePlan) -> Mapping[Any, Any]:
        """Render what belongs to no Service."""

    def render(self, plan: ServicePlan) -> Rendered[Any, Any]:
        """Render one Service."""

    def close(self) -> None:
        """Close what it has opened."""


class Mode(Backend[Any, Any], Protocol):
    """A mode for one family, as it runs: every mode implements all of this; `reconcile.backend` has what some add."""

    def shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        """List what a Service asks for in vain in this mode, and what is done instead. Pure."""

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        """Read what the kernel has counted for the Services of these plans; `endpoints` as in `Counts`.

        The kernel's objects were rendered from these plans; `vipwire status` may ask for one Service only. Runs in a
        thread of its own, also while the mode observes or commits, so that a scrape delays no sync: the mode opens a
        socket (or process) for it, and touches nothing of its own that changes. It writes nothing to the kernel, and
        needs no right to write. Raise OSError or CommitError if the kernel cannot be read; return empty counts if
        none of this mode's objects exist.
        """

    def housekeeping_due(self) -> float | None:
        """Return the seconds until there is something to do between syncs; None if there is nothing."""

    def housekeep(self) -> None:
        """Run what is due, such as to remove what has drained. Raise OSError or VipwireError."""

    def describe(self, key: Any) -> str:
        """Name one object for a person."""

    def close(self) -> None:
        """Close its sockets; what is programmed stays."""

    def delete(self) -> bool:
        """Remove everything of this mode and family; tell whether there was anything."""


class Difference(NamedTuple):
    """Something that other modes do and this one does not.

    `sentences` are those of docs/semantics.md that do not hold; `what` says what users see here instead, `why` gives
    the reason: whole sentences, which the page of modes prints.
    """

    sentences: tuple[str, ...]
    what: str
    why: str


class Tool(NamedTuple):
    """A program that belongs to a mode: what for, and whether the mode cannot do without it."""

    name: str
    purpose: str
    needed: bool = False


class Remark(NamedTuple):
    """Something that a mode says of this machine: what it is about, and what to do if it is not as it should be."""

    what: str
    said: str
    remedy: str = ""
    bad: bool = False


class NatPriorities(NamedTuple):
    """The priorities of a mode's nat chains at prerouting and output, and its own table of nftables.

    Nat chains of others with these priorities, or smaller ones, decide before it. The default is iptables'.
    `source` is that of the chains at input and postrouting, which masquerade.
    """

    prerouting: int = -100
    output: int = -100
    table: str = ""
    source: int = 100


BEHIND_ALL: Final = 1 << 31
"""The priority of what sees packets only behind all nat chains of a hook."""
MASQUERADES_NOTHING: Final = -BEHIND_ALL
"""The priority `source` of a mode that changes no source address."""


def _always_writes_rules(_: Config) -> bool:
    return False


class RemovalResult(Value, frozen=True):
    """What one look has removed, and what waits for its connections to end. In words."""

    removed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


class Remains(Protocol):
    """The leftovers of one mode in one family, beside rules of iptables; see `proxy.handover.leftovers`.

    It is asked again as long as something waits.
    """

    def before_rules(self) -> RemovalResult:
        """Find leftovers, and remove what must go before the rules of other modes do.

        Raise CommitError, OSError or UnsupportedError if the kernel does not let us.
        """

    def held(self) -> "frozenset[ChainName]":
        """Name the chains of this mode that must stay as long as what `before_rules` has found is in use."""

    def after_rules(self) -> RemovalResult:
        """Remove what can go once the rules are gone. Raise as `before_rules` does."""


class ModeSpec(Value, frozen=True):
    """The description of a mode.

    `driver` names the module with its DRIVER. `fallback` lists the modes to try in its place, in that order.
    `for_whom` and `page` are for the page that compares modes. `differences` is what of docs/semantics.md does not
    hold in it, `lacks` what annotations ask for in vain. `metrics` are those that not every mode has. `tools` are
    programs that people or the mode use. The addresses of `vip_devices` are VIPs, not the machine's own.

    `includes` names modes whose rules are a part of it. `direct`: connections of this node's clients may go to
    endpoints as they are, and connection tracking sees no Service in them. `port_ranges`: it serves the annotation
    port-range. `per_address`: it has an object for each of the node's addresses, and must be told them. `relays`: the
    proxy itself is the endpoint's client, and node ports are sockets. `terse`: where there are very many endpoints,
    it says less about each.
    `without_rules` tells whether a configuration makes it do without rules, and so without CAP_NET_ADMIN; `way_out`
    says how to have that.
    """

    name: str
    driver: str
    settings: ModeSettings
    for_whom: str
    page: str
    fallback: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    lacks: tuple[Lack, ...] = ()
    metrics: frozenset[MetricGroup] = frozenset()
    tools: tuple[Tool, ...] = ()
    vip_devices: frozenset[str] = frozenset()
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
        """Build it. With `prepare` it may make the machine ready, without it only looks.

        Raise UnsupportedError, which says what is missing, where this machine cannot run it.
        """


class Cleaners(Protocol):
    """Builds what removes all that a mode has left on this machine, whatever the mode was set to."""

    def __call__(self, families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        """Build it; without `rules` only what needs no right. Nothing where this machine cannot run the mode."""


class Driver(Value, frozen=True):
    """The actions of a mode. No field has a default: each mode says what it does, or that it does nothing."""

    build: ModeBuilder
    supposed: Callable[[Config, Iterable[Family]], Mapping[Family, Supposed]]
    """Builds what only renders. Raises UnsupportedError where not even that can be done here."""
    attempt: Callable[[Config, Iterable[Family]], None]
    """Tries on the kernel what can be taken back at once. Raises UnsupportedError, as `build`, if it is refused."""
    sysctls: Callable[[Config], tuple[Sysctl, ...]]
    """Lists the kernel settings that the mode wants."""
    priorities: NatPriorities
    """Where the mode decides about a connection, if it writes rules."""
    explainer: "Callable[[Family, Any], Explainer[Any, Any, Any] | None]"
    """Builds what explains the mode's objects, as the Mode given to it sees them."""
    remarks: Callable[[Config], Iterable[Remark]]
    """Lists what an operator should know of this machine, beside whether the mode can be built here."""
    standing: Callable[[Config], Iterable[Remark]]
    """Describes for `vipwire status` what the mode has beside rules: reads only, and tries nothing."""
    kernel_counters: Mapping[str, Callable[[], float | None]]
    """Reads the counters that the kernel keeps for the mode, by the name of the metric."""
    cleaners: Cleaners
    owner: "Callable[[Family], RuleOwner | None]"
    """Returns what knows the mode's chains among the rules of iptables; None where it writes none."""
    remains: Callable[[Family, ModeSpec], Remains | None]
    """Returns what finds and removes what the mode has left beside rules of iptables, while another mode runs."""
    translates: Callable[[Family], bool]
    """Reports whether anything of the mode beside rules of iptables translates now. Raises OSError if unknown."""
    before_first_commit: "Callable[[Backend[Any, Any], Others], Backend[Any, Any]]"
    """Returns the backend to commit to: the given one, or one whose first commit leaves no gap beside the others."""


def clean_by(build: ModeBuilder) -> Cleaners:
    """Make the cleaners of a mode that leaves nothing but the objects of its Modes."""

    def cleaners(families: Iterable[Family], *, rules: bool) -> Iterable[tuple[Family, Mode]]:
        if not rules:
            return ()
        try:
            return build(Config(), families, prepare=False).items()
        except UnsupportedError:
            return ()

    return cleaners


class Others(Protocol):
    """The other modes on this node, for one that arrives."""

    def translating(self) -> frozenset[ModeSpec]:
        """Find those that translate now. Raise CommitError or OSError if nobody can tell."""

    def disarm(self) -> None:
        """Remove what drops whatever is not translated in its own way."""
