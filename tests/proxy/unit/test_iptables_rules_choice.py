"""How an endpoint is chosen: each rule's share of what comes to it, turns, and a hash that a program of BPF makes."""

from collections import Counter

import pytest

from vipwire.model.net import Address, Family, parse_address
from vipwire.model.spread import Algorithm, Spread
from vipwire.modes.iptables.rules.choice import choices, hash_match, run_program
from vipwire.plan.plan import Forward, Masquerade, Target

POOL = tuple(Target(parse_address(f"10.1.0.{number}"), 80, local=False) for number in (1, 2, 3))


def chosen(spread: Spread, *, hashes: bool = True) -> list[tuple[str, int]]:
    forward = Forward(POOL, Masquerade.NEVER, spread=spread)
    return [(match, POOL.index(target)) for match, target in choices(Family.IPV4, forward, hashes=hashes)]


def test_kube_proxys_chances_are_as_it_writes_them() -> None:
    assert [match for match, _ in chosen(Spread())] == [
        "-m statistic --mode random --probability 0.33333333349",
        "-m statistic --mode random --probability 0.50000000000",
        "",
    ]


@pytest.mark.parametrize(("weights", "turns"), [((), [0, 1, 2]), ((2, 1, 1), [0, 1, 2, 0])])
def test_turns_are_counted_by_each_rule_of_what_reaches_it(weights: tuple[int, ...], turns: list[int]) -> None:
    rules = chosen(Spread(Algorithm.ROUND_ROBIN, weights))
    counters = [0] * len(rules)
    taken = []
    for _ in range(3 * len(turns)):
        for at, (match, target) in enumerate(rules):
            every = int(match.split(" ")[5]) if match else 1
            counters[at] += 1
            if counters[at] % every == 1 % every:
                taken.append(target)
                break
    assert taken == 3 * turns


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("weights", [(), (1, 2, 1)])
def test_clients_are_spread_by_their_address_and_always_go_to_the_same(
    family: Family, weights: tuple[int, ...]
) -> None:
    forward = Forward(POOL, Masquerade.NEVER, spread=Spread(Algorithm.SOURCE_HASH, weights))
    rules = list(choices(family, forward, hashes=True))
    clients = [Address(bytes([10, *bytes(family.bits // 8 - 3)]) + number.to_bytes(2)) for number in range(4000)]
    found: Counter[Target] = Counter()
    for client in clients:
        at = next(target for match, target in rules if not match or run_program(match.split('"')[1], client))
        found[at] += 1
    for target, weight in zip(POOL, weights or (1, 1, 1), strict=True):
        assert abs(found[target] / len(clients) - weight / (sum(weights) or 3)) < 0.05


def test_a_program_that_is_not_ours_is_not_run() -> None:
    with pytest.raises(ValueError, match="not one of ours"):
        run_program("1,48 0 0 9", parse_address("10.0.0.1"))
    assert len(hash_match(Family.IPV6, 1000, 999).split('"')[1].split(",")) <= 65, "the kernel takes 64 instructions"
