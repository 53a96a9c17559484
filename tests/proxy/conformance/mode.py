"""The particulars of a mode: its rules, other programs' rules beside them, its missing features."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vipwire.model.net import Family
from vipwire.modes.registry import find_spec
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
    """Another program's rules beside vipwire's: commands that make, list (without counts) and remove them."""

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

    `calm` is the period of kernel checks in undisturbed clusters, because a full read is slow in some modes,
    `watchful` the period where tests interfere. `alarmed`: changes of other programs elsewhere make the proxy read
    its own rules, which the log shows. `tardy`: the kernel updates its counters only now and then. `flags` set the
    defaults of the sentences, `prepare` prepares each node before the first proxy. `relays`: a process outlives the
    proxy until the cleanup, and endpoints see that process's address, so tests check only masqueraded clients' source
    addresses. `no_sctp` is the reason why SCTP can only be refused. `variant` distinguishes two modes of one name,
    `excludes` are flags that the mode refuses.

    `sampled`: one case of each test proves a sentence. `one_family`: the same code writes both families' rules, so
    each case runs in one family, half of them in either, and in the other family by a mode with a variant. A test
    without cases runs in both; by a variant, in the family that is not the sampled variant's. `placed` returns the
    flags that depend on the lab, the node and the other flags. `has_cgroup`: the session's process is in the mode's
    cgroup, and the mode's kernel objects outlive the lab, so the suite removes them.
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
        found = find_spec(self.name).differences
        return {number: each.why for each in found for number in each.sentences}

    def __str__(self) -> str:
        return f"{self.name}-{self.variant}" if self.variant else self.name
