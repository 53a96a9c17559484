"""What is particular to a mode: where its rules are, and what it cannot do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vipwire.model.net import Family

Command = Sequence[str]


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
