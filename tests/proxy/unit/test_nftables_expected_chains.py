"""A chain is known by its name: the same text as it was rendered with, and nothing for names of others."""

import itertools

import pytest

from vipwire.model.net import Family
from vipwire.model.spread import Algorithm
from vipwire.modes.nftables.table.names import AffinitySet, Class, Space, is_memory
from vipwire.modes.nftables.table.pools import (
    class_chain,
    dealing_chain,
    find_written_chain,
    remember_chain,
    remembered_chain,
)


def test_every_class_is_known_by_the_name_of_its_chain() -> None:
    kinds = list(
        itertools.starmap(Class, itertools.product(Space, (False, True), (False, True), Algorithm, (1, 11, 65521)))
    )
    for kind in kinds:
        assert find_written_chain(Family.IPV4, kind.chain) == class_chain(Family.IPV4, kind)
    turns = [kind for kind in kinds if kind.algorithm is Algorithm.ROUND_ROBIN]
    for kind in turns:
        assert find_written_chain(Family.IPV6, f"{kind.chain}-{kind.size}-default/a-7/tcp/80") == dealing_chain(
            Family.IPV6, kind
        )


@pytest.mark.parametrize("owner", ["default/web/tcp/http", "default/web/udp/", "local/both"])
@pytest.mark.parametrize(("local", "both"), list(itertools.product((False, True), repeat=2)))
def test_what_remembers_is_known_too(owner: str, local: bool, both: bool) -> None:  # noqa: FBT001
    memory = AffinitySet(owner, local, both)
    plain = memory._replace(both=False)  # it does not tell in the chain's name, nor in its rules
    for space, pool in ((Space.SERVICE, "service"), (Space.NODE_PORT, "nodeport-local")):
        made = remember_chain(Family.IPV4, space, pool, 10800, memory)
        assert made == remember_chain(Family.IPV4, space, pool, 10800, plain)
        assert find_written_chain(Family.IPV4, memory.remember_chain(pool, 10800)) == made
        asking = remembered_chain(Family.IPV4, pool, 10800, memory)
        assert find_written_chain(Family.IPV4, memory.remembered_chain(pool, 10800)) == asking
        assert len(asking.rules) == 1 + both
    assert is_memory(memory.map)
    assert is_memory(memory.other_policy_map)


@pytest.mark.parametrize(
    "name",
    ["", "mine", "services", "service-ip", "service-pick", "service-pick-0", "service-pick-70000", "service-3",
     "service-pick-3-x", "service-affinity-pick-3", "service-turn-3", "service-remember-",
     "service-remember-10800", "nodeport-local-hash-x"],
)  # fmt: skip
def test_other_names_tell_nothing(name: str) -> None:
    assert find_written_chain(Family.IPV4, name) is None
