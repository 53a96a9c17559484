"""Chooses the iptables engine that this node uses: that of kubelet and the network plugin."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from vipwire.errors import BusyError, CommitError
from vipwire.model.net import Family
from vipwire.modes.xtables.ownership import KUBELETS
from vipwire.modes.xtables.tool import IptablesTool, find_installed_tools

K = TypeVar("K")


def order_by_use(saved: Mapping[K, str]) -> list[K]:
    """Order engines by the evidence that this node uses them: first kubelet's chains, then more rules.

    `saved` is each engine's iptables-save output. The sort is stable.
    """

    def evidence(engine: K) -> tuple[bool, int]:
        text = saved[engine]
        return any(f":{chain} " in text for chain in KUBELETS), f"\n{text}".count("\n-A ")

    return sorted(saved, key=evidence, reverse=True)


def find_used_tools(
    family: Family, purpose: str, *, limit: float | None = None
) -> tuple[list[IptablesTool], list[str]]:
    """Order the installed tools by the evidence that this node uses them.

    Unreadable ones are left out; the second result has the reasons.
    """
    saved: dict[IptablesTool, str] = {}
    errors: list[str] = []
    for tool in find_installed_tools(family, purpose, limit=limit):
        try:
            saved[tool] = tool.save()
        except CommitError as error:
            errors.append(str(error))
    return order_by_use(saved), errors


def first_accepted(tools: Iterable[IptablesTool], trial: str, refusals: list[str]) -> IptablesTool | None:
    """Return the first tool whose rules the kernel accepts; add the refusals of those before it.

    A kernel may list the tables of a variant and refuse every rule. While another program holds the xtables lock,
    nothing can be tried: the kernel reports missing features when it refuses the rules.
    """
    for tool in tools:
        try:
            tool.restore(trial)
        except BusyError:
            return tool
        except CommitError as error:
            refusals.append(str(error))
        else:
            return tool
    return None
