"""Which endpoint a connection goes to."""

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from vipwire.relay.balance import (
    EJECT_AFTER,
    EJECT_SECONDS,
    MOST_CLIENTS,
    BalancedEndpoint,
    BalancingAlgorithm,
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
    made.take(described, ClientMemory())
    return made


def chosen(found: BalancedEndpoint | None) -> int:
    assert found is not None
    return found.place.address[3]


def choose(of: Pool, times: int, client: str = "192.0.2.1", now: float = 0.0) -> list[int]:
    return [chosen(of.choose(client, 1000 + number, now)) for number in range(times)]


def test_an_empty_pool_has_nobody() -> None:
    assert pool(listener()).choose("192.0.2.1", 1, 0.0) is None


def test_connections_go_round() -> None:
    turns = choose(pool(listener(1, 2, 3)), 9)
    assert turns[:3] == turns[3:6] == turns[6:9]
    assert sorted(turns[:3]) == [1, 2, 3]


def test_the_round_begins_anew_when_endpoints_change_and_not_otherwise() -> None:
    subject = pool(listener(1, 2, 3))
    first = choose(subject, 3)
    choose(subject, 1)
    subject.take(listener(1, 2, 3), ClientMemory())
    assert choose(subject, 2) == first[1:], "nothing has changed: the turn goes on"
    subject.take(listener(1, 2, 3, 4), ClientMemory())
    again = choose(subject, 4)
    subject.take(listener(1, 2, 3), ClientMemory())
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


def test_a_client_stays_and_each_visit_starts_the_time_anew() -> None:
    subject = pool(listener(1, 2, 3, affinity=10))
    (first,) = choose(subject, 1)
    assert {choose(subject, 1, now=now)[0] for now in (5.0, 12.0, 21.9)} == {first}
    assert choose(subject, 1, now=31.8) == [first]
    assert choose(subject, 1, now=41.9) != [first], "it has stayed away for ten seconds"


def test_clients_have_endpoints_of_their_own() -> None:
    subject = pool(listener(1, 2, 3, affinity=10))
    found = {client: choose(subject, 3, client) for client in ("192.0.2.1", "192.0.2.2", "192.0.2.3")}
    assert {len(set(each)) for each in found.values()} == {1}
    assert len({each[0] for each in found.values()}) == 3


def test_a_client_whose_endpoint_fails_it_is_given_another_and_keeps_that() -> None:
    subject = pool(listener(1, 2, 3, affinity=10))
    had = subject.choose("192.0.2.1", 1, 0.0)
    assert had is not None
    other = subject.choose("192.0.2.1", 1, 0.0, (had,))
    assert other is not had
    assert subject.choose("192.0.2.1", 2, 1.0) is other


def test_a_client_whose_endpoint_goes_is_given_another_and_does_not_go_back() -> None:
    subject = pool(listener(1, 2, 3, affinity=10))
    (had,) = choose(subject, 1)
    rest = [number for number in (1, 2, 3) if number != had]
    subject.take(listener(*rest, affinity=10), subject.memory)
    (other,) = choose(subject, 1)
    subject.take(listener(1, 2, 3, affinity=10), subject.memory)
    assert choose(subject, 3) == [other] * 3 != [had] * 3


def test_a_changed_timeout_counts_for_clients_that_are_there() -> None:
    subject = pool(listener(1, 2, 3, affinity=100))
    (had,) = choose(subject, 1)
    subject.take(listener(1, 2, 3, affinity=5), subject.memory)
    assert choose(subject, 1, now=6.0) != [had]


def test_one_memory_for_all_ports_of_an_endpoint() -> None:
    memory = ClientMemory(whole=True)
    http, https = Pool(lambda: 0.0), Pool(lambda: 0.0)
    http.take(listener(1, 2, 3, affinity=10), memory)
    shares: Sequence[Share] = [Share(place(number, 443)) for number in (1, 2, 3)]
    https.take(listener(*shares, affinity=10), memory)
    for number in range(12):
        client = f"192.0.2.{number}"
        assert chosen(http.choose(client, 1, 0.0)) == chosen(https.choose(client, 2, 0.0))


def test_who_is_remembered_elsewhere_goes_there_where_it_may_and_otherwise_keeps_both() -> None:
    whole, here = ClientMemory(), ClientMemory()
    cluster, local = Pool(lambda: 0.0), Pool(lambda: 0.0)
    cluster.take(listener(1, 2, 3, affinity=10), whole, here)
    local.take(listener(3, affinity=10), here, whole)
    first = cluster.choose("192.0.2.1", 1, 0.0)
    assert chosen(local.choose("192.0.2.1", 2, 0.0)) == 3
    assert cluster.choose("192.0.2.1", 3, 0.0) is first, "what the other policy chose counts for itself"
    assert chosen(local.choose("192.0.2.2", 4, 0.0)) == 3
    assert chosen(cluster.choose("192.0.2.2", 5, 0.0)) == 3, "who came by the other policy first goes there"


def test_counters_outlive_a_change_of_others() -> None:
    subject = pool(listener(1, 2))
    subject.record_connection(subject.targets[place(1)])
    subject.take(listener(1, 3), subject.memory)
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


def test_every_choice_is_a_word_of_the_annotation() -> None:
    assert {choice.value for choice in BalancingAlgorithm} == {
        "round-robin",
        "random",
        "least-connections",
        "source-hash",
        "maglev",
    }
