"""How an endpoint is chosen: each rule's share of what comes to it, turns, and a hash that a program of BPF makes."""

import pytest

from vipwire.model.net import Family, parse_address
from vipwire.model.spread import Spread
from vipwire.modes.iptables.rules.choice import list_choices, run_program, write_hash_match
from vipwire.plan.plan import Forward, Masquerade, Target

POOL = tuple(Target(parse_address(f"10.1.0.{number}"), 80, local=False) for number in (1, 2, 3))


def chosen(spread: Spread, *, hashes: bool = True) -> list[tuple[str, int]]:
    forward = Forward(POOL, Masquerade.NEVER, spread=spread)
    return [(match, POOL.index(target)) for match, target in list_choices(Family.IPV4, forward, hashes=hashes)]


def test_kube_proxys_chances_are_as_it_writes_them() -> None:
    assert [match for match, _ in chosen(Spread())] == [
        "-m statistic --mode random --probability 0.33333333349",
        "-m statistic --mode random --probability 0.50000000000",
        "",
    ]


def test_a_program_that_is_not_ours_is_not_run() -> None:
    with pytest.raises(ValueError, match="no BPF instruction"):
        run_program("1,48 0 0 9", parse_address("10.0.0.1"))
    assert len(write_hash_match(Family.IPV6, 1000, 999).split('"')[1].split(",")) <= 65, (
        "the kernel takes 64 instructions"
    )
