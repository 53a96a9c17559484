"""A chain is known by its name: the same text as it was rendered with, and nothing for names of others."""

import itertools

import pytest

from vipwire.backends.nftables.expected_chains import written
from vipwire.backends.nftables.names import Class, Memory, Space
from vipwire.backends.nftables.skeleton import class_chain, remember_chain, turn_chain
from vipwire.model.net import Family
from vipwire.plan.spread import Algorithm


def test_every_class_is_known_by_the_name_of_its_chain() -> None:
    kinds = list(itertools.starmap(Class, itertools.product(Space, (False, True), Memory, Algorithm, (1, 11, 65521))))
    for kind in kinds:
        assert written(Family.IPV4, kind.chain) == class_chain(Family.IPV4, kind)
    turns = [kind for kind in kinds if kind.algorithm is Algorithm.ROUND_ROBIN]
    for kind in turns:
        assert written(Family.IPV6, f"{kind.chain}-{kind.size}-default/a-7/tcp/80") == turn_chain(Family.IPV6, kind)


@pytest.mark.parametrize("memory", [Memory.FRONTEND, Memory.ADDRESS])
def test_what_remembers_is_known_too(memory: Memory) -> None:
    shared = "shared-" if memory is Memory.ADDRESS else ""
    made = remember_chain(Family.IPV4, Space.SERVICE, 10800, memory)
    assert written(Family.IPV4, f"service-{shared}remember-10800") == made


@pytest.mark.parametrize(
    "name",
    ["", "mine", "services", "service-ip", "service-pick", "service-pick-0", "service-pick-70000", "service-3",
     "service-pick-3-x", "service-affinity-pick-3", "service-turn-3", "service-remember-", "nodeport-local-hash-x"],
)  # fmt: skip
def test_other_names_tell_nothing(name: str) -> None:
    assert written(Family.IPV4, name) is None
