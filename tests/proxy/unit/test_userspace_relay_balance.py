"""Which endpoint a connection goes to."""

from collections import Counter
from collections.abc import Callable

import pytest

from vipwire.relay.balance import (
    EJECT_AFTER,
    EJECT_SECONDS,
    MOST_CLIENTS,
    BalancedEndpoint,
    ClientMemory,
    Pool,
)
from vipwire.relay.messages import Listener, Share, SocketAddress


def place(number: int, port: int = 80) -> SocketAddress:
    return SocketAddress(bytes((10, 0, 0, number)), port)


def listener(*shares: Share | int, **fields: object) -> Listener:
    made = tuple(each if isinstance(each, Share) else Share(place(each)) for each in shares)
    return Listener("web", 6, (SocketAddress(bytes(4), 0),), made, **fields)  # type: ignore[arg-type]


def pool(described: Listener, chance: Callable[[], float] = lambda: 0.0) -> Pool:
    made = Pool(chance)
    made.set_listener(described, ClientMemory())
    return made


def chosen(found: BalancedEndpoint | None) -> int:
    assert found is not None
    return found.place.address[3]


def choose(of: Pool, times: int, client: str = "192.0.2.1", now: float = 0.0) -> list[int]:
    return [chosen(of.choose(client, 1000 + number, now)) for number in range(times)]


def test_connections_go_round() -> None:
    turns = choose(pool(listener(1, 2, 3)), 9)
    assert turns[:3] == turns[3:6] == turns[6:9]
    assert sorted(turns[:3]) == [1, 2, 3]


def test_the_round_begins_anew_when_endpoints_change_and_not_otherwise() -> None:
    subject = pool(listener(1, 2, 3))
    first = choose(subject, 3)
    choose(subject, 1)
    subject.set_listener(listener(1, 2, 3), ClientMemory())
    assert choose(subject, 2) == first[1:], "nothing has changed: the turn goes on"
    subject.set_listener(listener(1, 2, 3, 4), ClientMemory())
    again = choose(subject, 4)
    subject.set_listener(listener(1, 2, 3), ClientMemory())
    assert sorted(again) == [1, 2, 3, 4]
    assert choose(subject, 3) == first


def test_weights_are_kept_to_and_interleaved() -> None:
    turns = choose(pool(listener(Share(place(1), 3), Share(place(2), 1))), 8)
    assert Counter(turns) == {1: 6, 2: 2}
    assert "2, 2" not in str(turns)


def test_chance_decides_where_it_is_asked_for() -> None:
    throws = iter([0.0, 0.0, 0.99, 0.99, 0.0])
    subject = pool(listener(1, 2, 3, algorithm="random"), lambda: next(throws))
    first, second, third = choose(subject, 3)
    assert first == second != third


def test_the_fewest_open_connections_for_its_weight_win() -> None:
    subject = pool(listener(Share(place(1), 2), Share(place(2), 1), algorithm="least-connections"))
    targets = {each.place.address[3]: each for each in subject.targets.values()}
    targets[1].open, targets[2].open = 3, 1
    assert choose(subject, 1) == [2]
    targets[1].open, targets[2].open = 3, 2
    assert choose(subject, 1) == [1]


def test_equals_take_turns_where_the_fewest_connections_win() -> None:
    assert set(choose(pool(listener(1, 2, 3, algorithm="least-connections")), 3)) == {1, 2, 3}


@pytest.mark.parametrize("algorithm", ["source-hash", "maglev"])
def test_hashes_are_the_same_for_the_same_client(algorithm: str) -> None:
    subject, other = (pool(listener(1, 2, 3, 4, algorithm=algorithm), lambda: 0.7) for _ in range(2))
    clients = [f"192.0.2.{number}" for number in range(64)]
    found = [chosen(subject.choose(client, 7, 0.0)) for client in clients]
    assert found == [chosen(other.choose(client, 7, 0.0)) for client in reversed(clients)][::-1]
    assert set(found) == {1, 2, 3, 4}


def test_only_maglev_takes_the_port() -> None:
    by_source = choose(pool(listener(1, 2, 3, 4, algorithm="source-hash")), 40)
    by_port = choose(pool(listener(1, 2, 3, 4, algorithm="maglev")), 40)
    assert (len(set(by_source)), len(set(by_port))) == (1, 4)


def test_a_dial_that_is_repeated_goes_to_others_until_all_were_tried() -> None:
    subject = pool(listener(1, 2, 3))
    tried: tuple[BalancedEndpoint, ...] = ()
    for _ in range(3):
        found = subject.choose("192.0.2.1", 1, 0.0, tried)
        assert found is not None
        tried = (*tried, found)
    assert len(set(tried)) == 3
    assert subject.choose("192.0.2.1", 1, 0.0, tried) in tried


def fail(of: Pool, number: int, times: int, now: float = 0.0) -> list[bool]:
    return [of.record_failed_dial(of.targets[place(number)], now) for _ in range(times)]


def test_who_fails_again_and_again_rests_and_comes_back() -> None:
    subject = pool(listener(1, 2))
    assert fail(subject, 1, EJECT_AFTER + 1) == [*[False] * (EJECT_AFTER - 1), True, False]
    assert set(choose(subject, 4, now=EJECT_SECONDS / 2)) == {2}
    assert set(choose(subject, 4, now=EJECT_SECONDS + 1)) == {1, 2}


def test_who_answers_in_between_does_not_rest() -> None:
    subject = pool(listener(1, 2))
    fail(subject, 1, EJECT_AFTER - 1)
    subject.record_connection(subject.targets[place(1)])
    assert fail(subject, 1, EJECT_AFTER - 1) == [False] * (EJECT_AFTER - 1)
    assert set(choose(subject, 4)) == {1, 2}


def test_where_all_rest_they_are_tried_all_the_same() -> None:
    subject = pool(listener(1, 2))
    fail(subject, 1, EJECT_AFTER)
    fail(subject, 2, EJECT_AFTER)
    assert set(choose(subject, 4, now=1.0)) == {1, 2}


def test_a_single_endpoint_never_rests() -> None:
    subject = pool(listener(1))
    assert fail(subject, 1, 10) == [False] * 10


def test_counters_outlive_a_change_of_others() -> None:
    subject = pool(listener(1, 2))
    subject.record_connection(subject.targets[place(1)])
    subject.set_listener(listener(1, 3), subject.memory)
    assert subject.targets[place(1)].connections == 1


def test_a_memory_is_bounded_and_forgets_who_stayed_away_longest() -> None:
    memory = ClientMemory()
    for number in range(MOST_CLIENTS + 10):
        memory.note(str(number), place(1), float(number))
    assert len(memory) == MOST_CLIENTS
    assert memory.recall("9", 9.0, 1e9) is None
    assert memory.recall("10", 9.0, 1e9) == place(1)


def test_a_memory_is_swept_of_those_who_stay_away() -> None:
    memory = ClientMemory()
    for number in range(10):
        memory.note(str(number), place(1), float(number))
    memory.note("0", place(1), 9.0)
    memory.forget(12.0, 5.0)
    assert len(memory) == 3, "8, 9, and 0 who came back"
