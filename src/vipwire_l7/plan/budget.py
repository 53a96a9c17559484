"""Limits the rules that HAProxy tries in turn for the requests of all tenants. Pure.

HAProxy finds hosts and plain paths in trees. It tries regular expressions and conditions one after another: each
costs requests for other hosts up to 2 microseconds, and a request for its own host all the steps that PCRE takes.
Requests of other namespaces wait meanwhile. So each namespace has a budget, and its oldest objects spend it first: a
new object never takes it from an object that is served.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from vipwire_l7.plan.expressions import estimate_steps
from vipwire_l7.plan.sites import Aspect, Chance, Comparison, Condition

MOST_TRIED: Final = 1_000
"""The most expressions and conditional rules of a namespace. HAProxy tries them for all requests: 2 ms at most."""
MOST_TRIED_OF_ALL: Final = 4_000
"""The maximum of all namespaces."""
MOST_STEPS: Final = 100_000
"""The maximum PCRE steps, or steps that take as long, for a request of one host, by one namespace: 2 ms."""

MOST_VALUES: Final = 4
"""The maximum values of one header in a request that HAProxy compares with an expression or one by one."""


class Budget:
    """The spent budgets of namespaces. Callers ask for the oldest objects first.

    Without `limited`, it only counts.
    """

    def __init__(self, *, limited: bool = True) -> None:
        self._is_limited = limited
        self.tried, self._steps = Counter[str](), Counter[tuple[str, str]]()

    @staticmethod
    def has_room(tried: Counter[str]) -> bool:
        """Report whether all that namespaces ask for fits."""
        return tried.total() <= MOST_TRIED_OF_ALL and all(each <= MOST_TRIED for each in tried.values())

    @property
    def is_crowded(self) -> bool:
        """Whether a namespace asks for too many steps of a host's requests."""
        return any(each > MOST_STEPS for each in self._steps.values())

    def spend(self, namespace: str, tried: int, steps: Mapping[str, int]) -> str:
        """Spend a namespace's budget, `steps` by host. If it does not suffice, spend nothing and return why."""
        text = self._find_excess(namespace, tried, steps) if self._is_limited else ""
        if not text:
            self.tried[namespace] += tried
            self._steps.update({(namespace, host): more for host, more in steps.items()})
        return text

    def _find_excess(self, namespace: str, tried: int, steps: Mapping[str, int]) -> str:
        if tried and self.tried[namespace] + tried > MOST_TRIED:
            return f"with it the namespace exceeds {MOST_TRIED} regular expressions and conditions"
        if tried and self.tried.total() + tried > MOST_TRIED_OF_ALL:
            return f"with it all namespaces exceed {MOST_TRIED_OF_ALL} regular expressions and conditions"
        for host, more in steps.items():
            if more and self._steps[namespace, host] + more > MOST_STEPS:
                return f"with it the namespace's rules for {host} may take more than {MOST_STEPS} steps of a request"
        return ""


def estimate_condition_steps(conditions: Iterable[Condition]) -> int:
    """Estimate the PCRE steps of conditions: to find a parameter or a cookie, HAProxy reads all of them."""
    return sum(map(_estimate_steps, conditions))


def _estimate_steps(of: Condition) -> int:
    if isinstance(of, Chance):
        return 10
    if not isinstance(of, Comparison) or of.aspect is Aspect.COOKIE:
        finding = 1_000
    elif of.aspect is Aspect.QUERY:
        finding = 3_000
    else:
        finding = 100 if of.aspect is Aspect.HEADER else 10
    if not isinstance(of, Comparison) or not of.expression:
        return finding
    return finding + estimate_steps(of.value) * (MOST_VALUES if of.aspect is Aspect.HEADER else 1)
