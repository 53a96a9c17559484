"""Makes counts by Service port, endpoint and refusal out of the rules' counters.

Rules of the nat table see the first packet of a connection: the one that translates to an endpoint counts its
connections. Rules of the filter table that refuse or drop are told by their comments.

A rule that is written anew begins at 0: an endpoint's when the endpoint comes back, a refusing one also when its
neighbours in the tree change. A `Ledger` remembers what a rule had counted before, so that a proxy's counts only
grow; what a rule counted between the last look and its replacement is lost. Who looks once remembers nothing.
"""

import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from vipwire.model.names import ServicePortName
from vipwire.modes.iptables.counts.rule_counters import RuleCounter
from vipwire.modes.iptables.rules.names import FILTER, NAT, UNALLOCATED, endpoint_chain
from vipwire.plan.plan import Forward, Reason, ServicePlan, Target
from vipwire.reconcile.counts import Count, Counts, EndpointName, Refusal

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

_Refused = tuple[Refusal, ServicePortName | None]


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
    """The counts of rules, including those that are gone. Safe to use from several threads."""

    chains: dict[ServicePortName, dict[str, _Account]] = field(default_factory=dict)
    gone: dict[ServicePortName, int] = field(default_factory=dict)
    refusals: dict[_Refused, _Account] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def port(self, name: ServicePortName, shown: Mapping[str, int]) -> dict[str, int]:
        """Store the counts of a port's chains; return them with earlier ones. `total` includes former chains."""
        accounts = self.chains.setdefault(name, {})
        for chain in accounts.keys() - shown.keys():
            account = accounts.pop(chain)
            self.gone[name] = self.gone.get(name, 0) + account.before + account.shown
        return {chain: accounts.setdefault(chain, _Account()).take(count) for chain, count in shown.items()}

    def total(self, name: ServicePortName, counted: Mapping[str, int]) -> int:
        """Add up the connections of a port."""
        return sum(counted.values()) + self.gone.get(name, 0)


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
    """Count, from the rules of the tables nat and filter. Pure but for the ledger."""
    shown = {rule.chain: rule.packets for rule in tables[NAT] if rule.place == TRANSLATING}
    ports: dict[ServicePortName, Count] = {}
    each: dict[EndpointName, Count] = {}
    with ledger.lock:
        for name, chains in ends.items():
            counted = ledger.port(name, {chain: shown[chain] for chain in chains if chain in shown})
            ports[name] = Count(connections=ledger.total(name, counted))
            if endpoints:
                for chain, number in counted.items():
                    before = each[chains[chain]].connections if chains[chain] in each else None
                    each[chains[chain]] = Count(connections=(before or 0) + number)
        refused = {
            key: ledger.refusals.setdefault(key, _Account()).take(number)
            for key, number in _refused(tables[FILTER], {str(name): name for name in ends}).items()
        }
    return Counts(ports, each, refused)


def _refused(rules: Iterable[RuleCounter], names: Mapping[str, ServicePortName]) -> dict[_Refused, int]:
    found: dict[_Refused, int] = {}
    for rule in rules:
        for key in _reason(rule.comment, names):
            found[key] = found.get(key, 0) + rule.packets
    return found


def _reason(comment: str, names: Mapping[str, ServicePortName]) -> Iterator[_Refused]:
    if comment == UNALLOCATED:
        yield Refusal.UNALLOCATED_CLUSTER_IP, None
    elif match := _ENTRY.match(comment):
        refusal = _REFUSALS[next(at for at, group in enumerate(match.groups()[1:]) if group)]
        if refusal is Refusal.UNDEFINED_PORT:
            yield refusal, None
        elif match[1] in names:
            yield refusal, names[match[1]]
