"""Converts the rules' counters to counts of Service ports, endpoints and refusals.

Rules of the nat table see the first packet of a connection: the rule that translates to an endpoint counts its
connections. Comments identify the rules of the filter table that reject or drop.

A rewritten rule begins at 0: an endpoint's rule when the endpoint comes back, a refusing rule also when its
neighbours in the tree change. A `Ledger` keeps the earlier numbers, so that a proxy's counts only grow; packets that
a rule counts between a scrape and its replacement are lost.
"""

import re
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.model.names import ServicePortName
from vipwire.modes.iptables.counts.rule_counters import RuleCounter
from vipwire.modes.iptables.rules.names import FILTER, NAT, UNALLOCATED, endpoint_chain
from vipwire.plan.plan import Forward, Reason, ServicePlan, Target
from vipwire.reconcile.counts import Counts, EndpointName, Measure, Owner, Refusal

TRANSLATING: Final = 1
"""The place of the rule in an endpoint's chain that translates to it."""

_ENTRY: Final = re.compile(
    rf"(\S+) (?:({Reason.NO_ENDPOINTS.value})|({Reason.NO_LOCAL_ENDPOINTS.value})"
    r"|(traffic not accepted by KUBE-FW-\S+)|(traffic not accepted by KUBE-NPFW-\S+)|(has no such port))$"
)
_REFUSALS: Final = (
    Refusal.NO_ENDPOINTS,
    Refusal.NO_LOCAL_ENDPOINTS,
    Refusal.SOURCE_RANGE,
    Refusal.NODE_PORT_SOURCE_RANGE,
    Refusal.UNDEFINED_PORT,
)


@dataclass(slots=True)
class _Account:
    """The count of one rule: its last value, and what it had counted before it was replaced."""

    shown: int = 0
    before: int = 0

    def take(self, shown: int) -> int:
        """Store the rule's current value; return it with what was counted before."""
        if shown < self.shown:
            self.before += self.shown
        self.shown = shown
        return self.before + shown


@dataclass(slots=True)
class Ledger:
    """The numbers of rules, also of rules that are gone. Safe to use from several threads."""

    accounts: dict[Hashable, dict[str, _Account]] = field(default_factory=dict)
    gone: dict[Hashable, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, owner: Hashable, shown: Mapping[str, int]) -> dict[str, int]:
        """Store the numbers of an owner's rules; return them with earlier ones. `gone` has those of former rules."""
        accounts = self.accounts.setdefault(owner, {})
        for rule in accounts.keys() - shown.keys():
            account = accounts.pop(rule)
            self.gone[owner] = self.gone.get(owner, 0) + account.before + account.shown
        return {rule: accounts.setdefault(rule, _Account()).take(number) for rule, number in shown.items()}


def endpoints_of(plans: Iterable[ServicePlan]) -> dict[ServicePortName, dict[str, EndpointName]]:
    """Name the endpoint of each endpoint's chain, by Service port; one with a range has two."""
    targets: dict[ServicePortName, set[tuple[Target, bool]]] = {}
    for plan in plans:
        ranges = ((each.frontend, True) for each in plan.ranges)
        for frontend, wide in (*((each, False) for each in plan.frontends), *ranges):
            known = targets.setdefault(frontend.port_name, set())
            for action in (frontend.action, frontend.short_circuit):
                if isinstance(action, Forward):
                    known.update((target, wide) for target in action.pool)
    return {
        name: {
            endpoint_chain(name, str(each), wide=wide): EndpointName(name, each.address, each.port)
            for each, wide in known
        }
        for name, known in targets.items()
    }


def count(
    ends: Mapping[ServicePortName, Mapping[str, EndpointName]],
    tables: Mapping[str, Iterable[RuleCounter]],
    ledger: Ledger,
    *,
    endpoints: bool,
) -> Counts:
    """Convert the rules of the tables nat and filter. Pure but for the ledger."""
    shown = {rule.chain: rule.packets for rule in tables[NAT] if rule.place == TRANSLATING}
    counts, names = Counts(endpoints=endpoints), {str(name): name for name in ends}
    refused = Counts()
    for rule in tables[FILTER]:
        for reason, owner in _reason(rule.comment, names):
            refused.add(reason, owner, rule.packets)
    with ledger.lock:
        for name, chains in ends.items():
            counted = ledger.take(name, {chain: shown[chain] for chain in chains if chain in shown})
            counts.add(Measure.CONNECTIONS, name, ledger.gone.get(name, 0))
            for chain, number in counted.items():
                counts.add_endpoint(Measure.CONNECTIONS, chains[chain], number)
        for (reason, owner), number in refused.refusals().items():
            counts.add(reason, owner, ledger.take((reason, owner), {"": number})[""])
    return counts


def _reason(comment: str, names: Mapping[str, ServicePortName]) -> Iterator[tuple[Refusal, Owner]]:
    if comment == UNALLOCATED:
        yield Refusal.UNALLOCATED_CLUSTER_IP, None
    elif match := _ENTRY.match(comment):
        refusal = _REFUSALS[next(at for at, group in enumerate(match.groups()[1:]) if group)]
        if refusal is Refusal.UNDEFINED_PORT:
            yield refusal, None
        elif match[1] in names:
            yield refusal, names[match[1]]
