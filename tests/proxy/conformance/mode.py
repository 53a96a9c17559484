"""The particulars of a mode: its rules, other programs' rules beside them, its missing features."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vipwire.model.net import Family
from vipwire.modes.registry import spec_of
from vipwire_lab.cluster.cluster import Lab

Command = Sequence[str]


@dataclass(frozen=True, slots=True)
class Harm:
    """Damage to vipwire's rules and ways to list them, as commands on the node.

    `{vip}` is a ClusterIP with the port 80/TCP. `listing` lists the rules without parts that packets change, apart
    from matches of the pattern `passing`; `exact` includes parts that change on rewriting. `obstacle` is a process
    that, told a line, prevents all others from writing the rules until it ends. The first of `wipes` harms only
    vipwire's rules.
    """

    wipes: Mapping[str, Mapping[Family, Command]]
    pieces: Mapping[str, Mapping[Family, Command]]
    extra: Mapping[Family, Command]
    listing: Mapping[Family, Command]
    exact: Mapping[Family, Command]
    passing: str
    obstacle: tuple[Command, str]


@dataclass(frozen=True, slots=True)
class Others:
    """Rules of somebody else beside ours, as commands on the node: to make, list without counts, and remove them."""

    make: tuple[Command, ...]
    listing: tuple[Command, ...]
    remove: tuple[Command, ...]


_RULES = """
    table inet others { chain c { type filter hook prerouting priority -300; counter; }; set s { type ipv4_addr; }; }
    table ip kube-proxy { chain services { counter; }; }
"""
_TABLES = ("inet others", "ip kube-proxy")
OTHER_TABLES = Others(
    make=(("nft", _RULES),),
    listing=tuple(("nft", "-s", "-a", f"list table {table}") for table in _TABLES),
    remove=tuple(("nft", f"delete table {table}") for table in _TABLES),
)


def _nothing(_lab: Lab, _node: str, _options: Sequence[str]) -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Mode:
    """A value of `--proxy-mode`.

    `calm` is how often a proxy checks the kernel that no test interferes with: reading it all is dear in some modes.
    `watchful` is how often it does where tests interfere. `alarmed` says that changes of others elsewhere make it
    read its own rules, which the log tells. In a `tardy` mode the kernel adds up what it counts only now and then.
    `flags` give the mode the defaults that the sentences speak of, and `prepare` makes each node ready before the
    first proxy. One that `relays` has a process that outlives the proxy until the cleanup, and endpoints see that:
    where a test looks at source addresses among other things, only those of masqueraded clients count. `no_sctp` says
    why SCTP can only be refused. `variant` tells two of one name apart, and `excludes` are flags that it refuses; one
    that is `sampled` proves each sentence by one case of each test. In one with `one_family` the same code writes the
    rules of both: each case of a test is run in one family, half of them in either, and in the other family by a mode
    with a variant. A test without other cases is run in both; by a variant, in the family that is not the sampled
    variant's. `placed` gives the flags that depend on the lab, the node
    and the other flags. The session's own process is in the cgroup of a mode that `has_cgroup`, and what such a mode
    leaves in the kernel outlives the lab: it is cleaned up.
    """

    name: str
    harm: Harm
    others: Others = OTHER_TABLES
    calm: str = "60s"
    watchful: str = "1s"
    alarmed: bool = True
    tardy: bool = False
    variant: str = ""
    flags: tuple[str, ...] = ()
    prepare: tuple[Command, ...] = ()
    sampled: bool = False
    one_family: bool = False
    relays: bool = False
    no_sctp: str = ""
    placed: Callable[[Lab, str, Sequence[str]], Sequence[str]] = _nothing
    has_cgroup: bool = False
    excludes: frozenset[str] = frozenset()

    @property
    def cannot(self) -> Mapping[str, str]:
        """The sentences of docs/semantics.md that do not hold, with the mode's own reasons."""
        found = spec_of(self.name).differences
        return {number: each.why for each in found for number in each.sentences}

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name
