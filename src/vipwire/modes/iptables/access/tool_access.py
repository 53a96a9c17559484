"""Reads and writes rules with the iptables tools; `NftAccess` falls back to this."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeAlias

from vipwire.errors import BusyError
from vipwire.modes.iptables.rules.names import TABLES, Rules
from vipwire.modes.iptables.rules.script import RestoreInput
from vipwire.modes.xtables.save import Chains, build_undeclared_error, build_unknown_line_error, normalize_rule
from vipwire.modes.xtables.tool import WAIT_SECONDS, RuleTool


@dataclass(slots=True)
class LockWait:
    """The wait for the xtables lock. It blocks the mode, so after a timeout the next wait is short."""

    seconds: int = WAIT_SECONDS

    def restore(self, tool: RuleTool, text: Iterable[str]) -> None:
        try:
            tool.restore(text, self.seconds)
        except BusyError:
            self.seconds = 1
            raise
        self.seconds = WAIT_SECONDS


Known: TypeAlias = Mapping[str, Mapping[str, Rules]]
"""The expected rules of chains, by table. A reader returns these objects for a chain that holds them."""


NAMES_US: Final = "KUBE-"
"""Part of every chain name of Kubernetes."""


class Written(NamedTuple):
    """The cost of one run: its size in bytes, and the commits that the kernel counted."""

    size: int
    commits: int


class RuleAccess(Protocol):
    """Reads the tables of one family, and writes runs."""

    batch: int
    """The limit of lines in a run; 0: unlimited."""

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        """Read every table; raise CommitError if that fails. `known` returns the expected rules.

        `known` is not called if no chain of Kubernetes exists.
        """

    def write(self, run: RestoreInput) -> Written:
        """Write one run; raise CommitError if the kernel refuses it or the xtables lock stays taken."""

    def close(self) -> None: ...


class ToolAccess:
    """Reads with iptables-save, and passes each run to iptables-restore."""

    def __init__(self, tool: RuleTool, lock_wait: LockWait, batch: int) -> None:
        self._tool, self._lock_wait, self.batch = tool, lock_wait, batch

    def read(self, known: Callable[[], Known]) -> Mapping[str, Chains]:
        return {table: self._read_table(table, known) for table in TABLES}

    def _read_table(self, table: str, known: Callable[[], Known]) -> Chains:
        pieces = self._tool.pieces(table)
        first = next(pieces, "")  # a table begins with its chains
        return read_save_stream(chain((first,), pieces), known().get(table, {}) if NAMES_US in first else {})

    def write(self, run: RestoreInput) -> Written:
        """Write one run; its text never lies in memory as a whole."""
        size = 0

        def counted() -> Iterator[str]:
            nonlocal size
            for piece in run.pieces():
                size += len(piece)
                yield piece

        self._lock_wait.restore(self._tool, counted())
        return Written(size, run.tables)

    def close(self) -> None: ...


_AHEAD: Final = 1 << 16
"""Characters of text kept ahead of a line; a chain with longer known rules is read line by line."""


_NO_RULES: Final[tuple[str, ...]] = ()


def read_save_stream(pieces: Iterable[str], known: Mapping[str, tuple[str, ...]]) -> Chains:
    """Parse one table without counters, given the expected rules of most chains. Raise DecodeError.

    A table of 5,000 Services with ten endpoints has 180,000 lines. A chain with its expected rules costs one
    comparison and reuses the known rule objects, so memory never holds the whole text or a second copy. Other chains
    are read line by line.
    """
    chains: dict[str, Sequence[str]] = {}
    source, more, text, at, inside = iter(pieces), True, "", 0, False
    while True:
        end = text.find("\n", at)
        if more and (end < 0 or len(text) - at < _AHEAD):
            piece = next(source, None)
            more, text, at = piece is not None, text[at:] + (piece or ""), 0
            continue
        if end < 0:
            if at == len(text):
                return chains
            end = len(text)
        if text.startswith("-A ", at):
            at = _match_known_chain(chains, known, text, at) or _add_rule(chains, text, at, end)
            continue
        if text.startswith(":", at) and inside:
            chains[text[at + 1 : end].partition(" ")[0]] = _NO_RULES
        elif not _is_not_rule(text[at:end]):
            raise build_unknown_line_error(text[at:end])
        inside = inside or text.startswith("*", at)
        at = min(end + 1, len(text))


def _is_not_rule(line: str) -> bool:
    """Report whether a line holds neither a chain nor a rule, but belongs to the format."""
    return not line or line.startswith(("#", "*")) or line == "COMMIT"


def _match_known_chain(
    chains: dict[str, Sequence[str]], known: Mapping[str, tuple[str, ...]], text: str, at: int
) -> int:
    """Take a chain's rules if the expected ones begin here; return the position behind them, or 0."""
    chain = text[at + 3 : text.find(" ", at + 3)]
    rules = known.get(chain)
    if not rules or chains.get(chain) is not _NO_RULES:
        return 0
    lines = f"-A {chain} " + f"\n-A {chain} ".join(rules) + "\n"
    if not text.startswith(lines, at):
        return 0
    chains[chain] = rules
    return at + len(lines)


def _add_rule(chains: dict[str, Sequence[str]], text: str, at: int, end: int) -> int:
    line = text[at:end]
    _, chain, rule = (*line.split(" ", 2), "")[:3]
    if chain not in chains:
        raise build_undeclared_error(chain, line)
    rules = chains[chain]
    if not isinstance(rules, list):
        rules = chains[chain] = [*rules]
    rules.append(normalize_rule(rule))
    return min(end + 1, len(text))
