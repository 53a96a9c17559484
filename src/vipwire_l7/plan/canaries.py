"""Decides how canaries share a path: headers decide, then cookies, then chance. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from vipwire_l7.plan.policy import Canary
from vipwire_l7.plan.sites import Aspect, Chance, Choice, Compared, Step, choice_of


@dataclass(slots=True)
class Split:
    """A path that canaries share: what each takes from `main`, by names of pools, the oldest Ingress's first."""

    main: str
    parts: list[tuple[str, Canary]] = field(default_factory=list)
    left: int = 100
    """The percentage that no canary takes."""

    def add(self, target: str, canary: Canary) -> None:
        self.parts.append((target, canary))
        self.left -= canary.weight

    @property
    def choice(self) -> Choice:
        """Return the choice that shares the path."""
        steps = (*_by_header(self), *_by_cookie(self), *_by_chance(self), Step(self.main))
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


def _by_chance(split: Split) -> Iterator[Step]:
    return shared(tuple((name, canary.weight) for name, canary in split.parts), 100)


def shared(parts: tuple[tuple[str, int], ...], whole: int) -> Iterator[Step]:
    """Share `whole` among parts, one after the other: each gets its share of what those before it have left."""
    left = whole
    for target, weight in parts:
        if weight >= left > 0:
            yield Step(target)
        elif weight:
            yield Step(target, (Chance(weight, left),))
        left -= weight
