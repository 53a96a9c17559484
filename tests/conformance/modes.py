"""The modes that the suite is run for, and what is particular to each: where its rules are, and what it cannot do.

A new mode is one more entry of MODES.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vipwire.model.net import Family

Command = Sequence[str]
TABLES = {Family.IPV4: ("ip", "vipwire"), Family.IPV6: ("ip6", "vipwire")}


@dataclass(frozen=True, slots=True)
class Harm:
    """What somebody else may do to our rules and see of them, as commands on the node.

    `{vip}` is a ClusterIP with the port 80/TCP. `listing` shows them without what packets change, apart from what the
    pattern `passing` matches; `exact` with whatever changes when they are written anew. `obstacle` is a process that,
    told a line, keeps everybody else from writing ours until it ends.
    """

    wipes: Mapping[str, Mapping[Family, Command]]
    pieces: Mapping[str, Mapping[Family, Command]]
    extra: Mapping[Family, Command]
    listing: Mapping[Family, Command]
    exact: Mapping[Family, Command]
    passing: str
    obstacle: tuple[Command, str]


@dataclass(frozen=True, slots=True)
class Mode:
    """A value of `--proxy-mode`. `cannot` maps sentences of docs/semantics.md to what the kernel lacks."""

    name: str
    harm: Harm
    cannot: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def _nft(text: str, *options: str) -> dict[Family, Command]:
    """Write an nft command for each family's table; `{table}` is its name with the family."""
    return {family: ("nft", *options, text.replace("{table}", " ".join(table))) for family, table in TABLES.items()}


_NFTABLES = Harm(
    wipes={
        "the table is flushed": _nft("flush table {table}"),
        "the table is deleted": _nft("delete table {table}"),
        "everything is flushed": dict.fromkeys(Family, ("nft", "flush ruleset")),
    },
    pieces={
        "a rule is removed": _nft("flush chain {table} services"),
        "an element is removed": _nft("delete element {table} service-ips { {vip} . tcp . 80 }"),
        "a map is emptied": _nft("flush map {table} service-endpoints"),
    },
    extra=_nft("insert rule {table} services tcp dport 80 drop"),
    listing=_nft("list table {table}", "-s"),
    exact=_nft("list table {table}", "-s", "-a"),
    passing=r"(?s)\tmap affinity \{.*?\n\t\}\n",
    # A table that has an owner is nobody else's to change, and goes with the owner.
    obstacle=(("nft", "-i"), "add table ip vipwire { flags owner; }\n"),
)

MODES = (Mode("nftables", _NFTABLES),)
