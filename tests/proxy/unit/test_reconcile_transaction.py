"""What comparing costs, counted in hashes of keys: a look-up in a mapping takes one, an equal mapping none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import pytest
from tests.fakes.values import named

from vipwire.errors import CommitError
from vipwire.plan.node import NodePlan
from vipwire.plan.plan import ServicePlan
from vipwire.reconcile.backend import Rendered
from vipwire.reconcile.delta import Delta, compute_delta
from vipwire.reconcile.reconciler import Belief, Reconciler, Transaction


class Key(str):
    """A key that counts how often keys of its kind are hashed."""

    __slots__ = ()
    hashed: ClassVar = 0

    def __hash__(self) -> int:
        Key.hashed += 1
        return super().__hash__()


@contextmanager
def counting() -> Iterator[list[int]]:
    """Put in the list, at the end, how many hashes it took."""
    found: list[int] = []
    before = Key.hashed
    yield found
    found.append(Key.hashed - before)


class Kernel:
    """A kernel of so many Services with an object each, which refuses what it is told to."""

    def __init__(self, services: int) -> None:
        self.names = [named(f"service-{number}") for number in range(services)]
        self.held: dict[Key, str] = {}
        self.refuses: frozenset[str] = frozenset()
        self.moved: dict[str, str] = {}

    def render_node(self, node: NodePlan) -> dict[Key, str]:
        del node
        return {}

    def render(self, plan: ServicePlan) -> Rendered[Key, str]:
        name = str(plan.name)
        return Rendered({Key(name): self.moved.get(name, "there")})

    def observe(self) -> dict[Key, str]:
        return dict(self.held)

    def changed(self) -> bool:
        return False

    def commit(self, delta: Delta[Key, str]) -> int:
        if self.refuses & {*delta.added, *delta.changed}:
            raise CommitError("the kernel refuses it")
        self.held.update(delta.added)
        self.held.update((key, new) for key, (_, new) in delta.changed.items())
        return len(delta)

    def reconciler(self) -> Reconciler[Key, str]:
        made: Reconciler[Key, str] = Reconciler(self)
        for name in self.names:
            made.desire(name, ServicePlan(name))
        return made


def test_a_kernel_that_has_it_all_is_compared_without_a_look_up() -> None:
    objects = {Key(f"object-{number}"): "there" for number in range(100)}
    step = Transaction(Belief(unowned=dict(objects)))
    step.add(named("web"), Rendered(objects))
    with counting() as hashes:
        delta = step.delta(last=True)
    assert (len(delta), hashes) == (0, [0])


@pytest.mark.parametrize("value", ["there", "elsewhere"])
def test_what_is_not_claimed_is_not_removed_before_the_last_step(value: str) -> None:
    step: Transaction[str, str] = Transaction(Belief(unowned={"web": "there", "mine": value}))
    step.add(named("web"), Rendered({"web": "there"}))
    assert step.delta(last=False) == Delta()
    assert step.delta(last=True) == Delta(removed={"mine": value})


def change(services: int) -> int:
    """Change one of so many Services, one of which is isolated; count what it takes."""
    kernel = Kernel(services)
    reconciler = kernel.reconciler()
    reconciler.sync()
    bad, web = kernel.names[:2]
    kernel.moved[str(bad)], kernel.refuses = "refused", frozenset({str(bad)})
    reconciler.desire(bad, ServicePlan(bad))
    reconciler.sync()
    assert list(reconciler.isolated) == [bad]
    kernel.moved[str(web)] = "moved"
    reconciler.desire(web, ServicePlan(web))
    with counting() as hashes:
        report = reconciler.sync()
    assert report.changed == 1
    return hashes[0]


def test_one_change_costs_the_same_however_many_services_there_are() -> None:
    assert change(10) == change(2_000)


def test_all_services_are_asked_once_for_what_an_isolated_one_keeps() -> None:
    kernel = Kernel(500)
    bad = kernel.names[0]
    reconciler = kernel.reconciler()
    reconciler.sync()
    kernel.moved[str(bad)], kernel.refuses = "refused", frozenset({str(bad)})
    reconciler.desire(bad, ServicePlan(bad))
    reconciler.sync()
    reconciler.distrust()
    with counting() as hashes:
        reconciler.sync()
    assert hashes[0] <= 3 * len(kernel.names)


def test_a_value_that_looks_like_nothing_is_one() -> None:
    nothing: dict[str, int | None] = {"a": None}
    zero: dict[str, int | None] = {"a": 0}
    expected: Delta[str, int | None] = Delta({}, {"a": (None, 0)})
    assert compute_delta(nothing, zero) == expected
    assert compute_delta({}, nothing) == Delta(nothing)
