"""A kernel that holds objects in a dictionary, and a mode that programs it: for tests of the layers above modes.

As in a real kernel, a transaction is all or nothing; adding an existing object, and changing or removing a missing
one, is refused; other programs may change objects, which `changed` reports.
"""

from collections.abc import Callable, Iterable, Mapping

from vipwire.errors import CommitError, VipwireError
from vipwire.model.problem import Problem
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.counts import Counts
from vipwire.reconcile.delta import Delta, apply_delta

Objects = dict[str, str]


class PlainMode:
    """The calls of `Mode` that a test's mode does not need."""

    def find_shortcomings(self, plan: ServicePlan) -> tuple[Problem, ...]:
        del plan
        return ()

    def read_counts(self, plans: Iterable[ServicePlan], *, endpoints: bool = True) -> Counts:
        del plans, endpoints
        return Counts()

    def housekeeping_due(self) -> float | None:
        return None

    def housekeep(self) -> None:
        """Do nothing."""


class DictBackend(PlainMode):
    """A mode of strings. A Service has an object for each address, and shares one for the number of addresses."""

    def __init__(self, held: Mapping[str, str] = {}) -> None:
        self.held: Objects = dict(held)
        self.refused: set[str] = set()
        """Keys that no transaction may add or change."""
        self.fails: str | VipwireError = ""
        """The error of every access to the kernel; "" for none."""
        self.observed = 0
        self.deltas: list[Delta[str, str]] = []
        """The accepted transactions."""
        self.refusals = 0
        self._meddled = False

    def render_node(self, node: NodePlan) -> Mapping[str, str]:
        return {"node": str(node.masquerade_bit)}

    def render(self, plan: ServicePlan) -> Rendered[str, str]:
        own = {f"{address.hex()}": str(plan.name) for address in plan.cluster_ips}
        own.update((f"{plan.name}{frontend.key}", str(frontend.action)) for frontend in plan.frontends)
        return Rendered(own, {f"size {len(plan.cluster_ips)}": "shared"} if plan.cluster_ips else {})

    def observe(self) -> Objects:
        self._answer()
        self.observed += 1
        self._meddled = False
        return dict(self.held)

    def changed(self) -> bool:
        """Report whether `meddle` was called."""
        self._answer()
        return self._meddled

    def commit(self, delta: Delta[str, str]) -> int:
        """Apply a difference, or refuse it."""
        self._answer()
        assert len(delta), "an empty transaction is none"
        self._check(delta)
        self.held = apply_delta(self.held, delta)
        self.deltas.append(delta)
        return len(delta)

    def meddle(self, change: Callable[[Objects], object]) -> None:
        """Change the objects as another program would."""
        change(self.held)
        self._meddled = True

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def describe(self, key: str) -> str:
        return key

    def delete(self) -> bool:
        had = bool(self.held)
        self.held = {}
        return had

    def _answer(self) -> None:
        if isinstance(self.fails, VipwireError):
            raise self.fails
        if self.fails:
            raise OSError(5, self.fails)

    def _check(self, delta: Delta[str, str]) -> None:
        old = {**{key: before for key, (before, _) in delta.changed.items()}, **delta.removed}
        wrong = self.refused & (delta.added.keys() | delta.changed.keys())
        wrong |= {key for key in delta.added if key in self.held}
        wrong |= {key for key, value in old.items() if self.held.get(key) != value}
        if wrong:
            self.refusals += 1
            raise CommitError(f"the kernel refuses {min(wrong)}", transaction=str(delta), errno=22)


def touched(deltas: Iterable[Delta[str, str]]) -> set[str]:
    """Return the keys of some transactions."""
    return {key for delta in deltas for part in (delta.added, delta.changed, delta.removed) for key in part}
