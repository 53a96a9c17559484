"""Runs iptables for ipvs mode, only when a chain changes. `ChainTool` tries the variant first."""

from vipwire.errors import UnsupportedError
from vipwire.model.net import Family
from vipwire.modes.ipvs.objects.chains import PROBE, parse_save, restore_text, rules_text, separate_shared
from vipwire.modes.ipvs.objects.names import RangeRule, Rules
from vipwire.modes.xtables import tool as xtables
from vipwire.modes.xtables.choice import find_used_tools, first_accepted
from vipwire.modes.xtables.save import ChainName
from vipwire.reconcile.delta import Delta, SentBytes

_PURPOSE = "ipvs mode"
_LIMIT_SECONDS = 60.0
"""Enough for ipvs mode's rules, whose number does not grow with the Services."""


class ChainTool:
    """iptables of one family, in the variant (legacy or nft) that this node uses, if the variant works."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._chosen: xtables.IptablesTool | None = None

    def require(self) -> xtables.IptablesTool:
        """Choose the variant, once. Raise UnsupportedError if neither works."""
        if self._chosen is None:
            self._chosen = self._choose_tool()
        return self._chosen

    def read(self, ours: frozenset[ChainName]) -> tuple[dict[ChainName, Rules], dict[RangeRule, int]]:
        """Read vipwire's chains, and the rules of chains that Services share. Raise CommitError or DecodeError."""
        return separate_shared(parse_save(self.require().save(), ours) if ours else {})

    def read_counted(self) -> str:
        """Print all rules with counters. Raise UnsupportedError if neither variant works."""
        return self.require().save(counted=True)

    def write(self, delta: Delta[ChainName, Rules]) -> SentBytes:
        """Apply a difference. Raise CommitError if iptables refuses a table."""
        return self._restore(restore_text(delta))

    def write_rules(self, delta: Delta[RangeRule, int]) -> SentBytes:
        """Apply a difference of single rules. Raise CommitError if refused."""
        return self._restore(rules_text(delta))

    def _restore(self, text: str) -> SentBytes:
        if text:
            self.require().restore(text)
        return len(text)

    @property
    def variant(self) -> str:
        """The variant, `legacy` or `nft`. Raise UnsupportedError if neither works."""
        return self.require().variant.value

    def _choose_tool(self) -> xtables.IptablesTool:
        tools, errors = find_used_tools(self._family, _PURPOSE, limit=_LIMIT_SECONDS)
        if (chosen := first_accepted(tools, PROBE, errors)) is not None:
            return chosen
        said = "; ".join(errors) or "it is not installed"
        raise UnsupportedError(
            f"{_PURPOSE} needs {xtables.PROGRAM[self._family]} (package iptables), and it fails: {said}"
        )
