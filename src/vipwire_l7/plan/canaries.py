"""Decides how canaries split a path: by headers, then cookies, then sessions, then weights. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vipwire_l7.plan.policy import Canary
from vipwire_l7.plan.sessions import bound_steps, share_requests
from vipwire_l7.plan.sites import Aspect, Choice, Compared, Pool, Step, choice_of


@dataclass(slots=True)
class Split:
    """A path that canaries split: `main` is its pool, `parts` the pools of canaries, the oldest Ingress's first."""

    main: str
    parts: list[tuple[str, Canary]] = field(default_factory=list)
    left: int = 100
    """The percentage that no canary takes."""

    def add(self, target: str, canary: Canary) -> None:
        self.parts.append((target, canary))
        self.left -= canary.weight

    def choice(self, pools: Mapping[str, Pool]) -> Choice:
        bound = bound_steps(tuple(_keeping_sessions(self)), pools)
        steps = (*_by_header(self), *_by_cookie(self), *bound, *_by_chance(self), Step(self.main))
        return choice_of(tuple(steps))


def _by_header(split: Split) -> Iterator[Step]:
    for other, canary in split.parts:
        if canary.header:
            yield Step(other, (Compared(Aspect.HEADER, canary.value or "always", canary.header, split=True),))
            if not canary.value:
                yield Step(split.main, (Compared(Aspect.HEADER, "never", canary.header, split=True),))


def _by_cookie(split: Split) -> Iterator[Step]:
    for other, canary in split.parts:
        if canary.cookie:
            yield Step(other, (Compared(Aspect.COOKIE, "always", canary.cookie),))
            yield Step(split.main, (Compared(Aspect.COOKIE, "never", canary.cookie),))


def _keeping_sessions(split: Split) -> Iterator[tuple[str, int]]:
    """Yield the pools to which sessions return, with their weights. A header or cookie alone starts no session."""
    yield split.main, split.left
    for name, canary in split.parts:
        if canary.weight or not (canary.header or canary.cookie):
            yield name, canary.weight


def _by_chance(split: Split) -> Iterator[Step]:
    return share_requests(tuple((name, canary.weight) for name, canary in split.parts), 100)
