"""A chain is known by its name: the same text as it was rendered with, and nothing for names of others."""

import pytest

from vipwire.model.net import Family
from vipwire.modes.nftables.table.pools import (
    find_written_chain,
)


@pytest.mark.parametrize(
    "name",
    ["", "mine", "services", "service-ip", "service-pick", "service-pick-0", "service-pick-70000", "service-3",
     "service-pick-3-x", "service-affinity-pick-3", "service-turn-3", "service-remember-",
     "service-remember-10800", "nodeport-local-hash-x"],
)  # fmt: skip
def test_other_names_tell_nothing(name: str) -> None:
    assert find_written_chain(Family.IPV4, name) is None
