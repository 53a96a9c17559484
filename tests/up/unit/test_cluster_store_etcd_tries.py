"""Which member of etcd is asked when one does not answer, and what became of a transaction that was sent twice."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import grpc.aio
import pytest
from tests.up.unit.etcd_here import Etcd, members
from tests.up.unit.store_here import now, prefix, put, remove, settings

from vipwire_up.store.etcd.client import PATIENCE, Client, EtcdReply
from vipwire_up.store.etcd.layout import Layout
from vipwire_up.store.etcd.settings import EtcdServer, EtcdSettings, read_settings
from vipwire_up.store.etcd.transactions import Transactions
from vipwire_up.store.record import ConflictError, UnknownOutcomeError, Write

SERVERS = "http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379"
A, B, C = (EtcdServer(f"10.0.0.{number}", 2379, secure=False) for number in (1, 2, 3))


class Members(Client):
    """Members that answer as `answers` says: a message, or the details of an error that comes at once."""

    def __init__(
        self, given: EtcdSettings, answers: Mapping[EtcdServer, Iterator[str]], connected: set[EtcdServer]
    ) -> None:
        super().__init__(given, now)
        self._answers, self._connected = answers, connected
        self.asked: list[tuple[EtcdServer, float]] = []

    def _is_connected(self, server: EtcdServer) -> bool:
        return server in self._connected

    async def _ask_once(self, server: EtcdServer, method: str, request: Any, seconds: float) -> Any:
        del method, request
        self.asked.append((server, round(seconds, 1)))
        said = next(self._answers[server])
        if said == "done":
            return said
        code = grpc.StatusCode.DEADLINE_EXCEEDED if said == "silent" else grpc.StatusCode.UNAVAILABLE
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=said)


def asked(
    own: set[str], answers: Mapping[EtcdServer, Iterator[str]], connected: set[EtcdServer] | None = None
) -> list[tuple[EtcdServer, float]]:
    """Call once; return which members were asked, and how long each was given."""
    given = read_settings({"etcd-servers": SERVERS}).with_nearest_first(own)
    client = Members(given, answers, {A, B, C} if connected is None else connected)
    asyncio.run(client.call("KV/Range", None))
    return client.asked


def test_the_member_of_this_machine_is_asked_first_and_twice() -> None:
    late = {B: iter(("silent", "silent", "done")), C: iter(("silent",)), A: iter(("silent",))}
    assert [each for each, _ in asked({"10.0.0.2", "192.0.2.1"}, late)] == [B, B, A, C, B]
    assert [each for each, _ in asked(set(), {A: iter(("silent",)), B: iter(("done",))})] == [A, B]


def test_a_member_without_a_connection_is_not_waited_for_while_another_may_answer() -> None:
    told = {B: iter(("etcdserver: no leader",) * 2), C: iter(("done",))}
    assert [each for each, _ in asked({"10.0.0.2"}, told, {B, C})] == [B, B, C]
    alone = {B: iter(("etcdserver: no leader",) * 3 + ("done",))}
    assert [each for each, _ in asked({"10.0.0.2"}, alone, set())] == [B, B, B, B]
    silent = {A: iter(("silent",)), B: iter(("done",))}
    assert [each for each, _ in asked(set(), silent, set())] == [A, B]  # none is near: the next is connected to


def test_a_try_takes_less_than_an_election_and_later_ones_longer() -> None:
    """What went to a leader that died is never answered: who waits for it cannot renew a Lease meanwhile."""
    late = {A: itertools.chain(("silent",) * 6, ("done",))}
    times = [seconds for _, seconds in asked({"10.0.0.1"}, late, {A})]
    assert max(times[:5]) < 0.5
    assert times[5] == 1.0
    assert sum(times[:6]) < PATIENCE


class Twice(Client):
    """Sends a transaction twice, as if the first answer was lost. Between them somebody else writes `meanwhile`."""

    meanwhile: Callable[[int], Awaitable[int]]

    async def call(self, method: str, request: Any, *, patience: float = PATIENCE, once: bool = False) -> EtcdReply:
        first = await super().call(method, request, patience=patience, once=once)
        await self.meanwhile(first.message.header.revision)
        return EtcdReply((await super().call(method, request, patience=patience, once=once)).message, repeated=True)


async def write(transactions: Transactions, step: Write) -> int:
    return await transactions.commit((step,), (step.encode(0),))


@pytest.fixture(scope="module")
def one() -> Iterator[Etcd]:
    with members(1) as etcd:
        yield etcd


def commit_twice(etcd: Etcd, step: Callable[[int], Write], meanwhile: Callable[[int], Write]) -> set[str]:
    """Write one object, commit a transaction by two tries, and return the names of the objects afterwards."""

    async def scenario() -> set[str]:
        given = settings(etcd, prefix())
        layout, client, plain = Layout(given.prefix), Twice(given, now), Client(given, now)
        other = Transactions(plain, layout)
        client.meanwhile = lambda revision: write(other, meanwhile(revision))
        try:
            before = await write(other, put("a", "old"))
            assert await write(Transactions(client, layout), step(before)) > before
            return {key.name for key, _, _ in await other.read_state((await other.read_newest_revision())[1])}
        finally:
            await client.close()
            await plain.close()

    return asyncio.run(scenario())


@pytest.mark.slow
def test_a_transaction_whose_answer_was_lost_is_known_by_what_it_wrote(one: Etcd) -> None:
    """Also when others have written since, elsewhere."""
    assert commit_twice(one, lambda before: put("a", "mine", before), lambda _: put("b", "theirs")) == {"a", "b"}
    assert commit_twice(one, lambda before: remove("a", before), lambda _: put("b", "theirs")) == {"b"}


@pytest.mark.slow
def test_a_transaction_whose_object_was_changed_since_has_an_unknown_outcome(one: Etcd) -> None:
    with pytest.raises(UnknownOutcomeError):
        commit_twice(one, lambda before: put("a", "mine", before), lambda made: put("a", "theirs", made))
    with pytest.raises(UnknownOutcomeError):
        commit_twice(one, lambda before: remove("a", before), lambda _: put("a", "theirs"))


class Stalled(Client):
    """Keeps the first transaction of an object back, and says that it was not answered."""

    kept: Any = None

    async def _ask_once(self, server: EtcdServer, method: str, request: Any, seconds: float) -> Any:
        if method == "KV/Txn" and self.kept is None and len(request.success) > 1:  # not that of `tries` alone
            self.kept = request
            late, nothing = grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(late, nothing, nothing, details="Deadline Exceeded")
        return await super()._ask_once(server, method, request, seconds)


@pytest.mark.slow
async def test_what_was_created_by_the_second_try_and_deleted_does_not_come_back_by_the_first(one: Etcd) -> None:
    """A member that was suspended may make the first try at any time."""

    given = settings(one, prefix())
    client, plain = Stalled(given, now), Client(given, now)
    transactions = Transactions(client, Layout(given.prefix))
    try:
        made = await write(transactions, put("a"))
        await write(transactions, remove("a", made))
        late = await plain.call("KV/Txn", client.kept)
        assert not late.message.succeeded
        assert not await transactions.read_state((await transactions.read_newest_revision())[1])
        await write(transactions, put("a"))
    finally:
        await client.close()
        await plain.close()


@pytest.mark.slow
async def test_a_creation_is_sent_again_when_another_process_could_not_tell_what_became_of_its_own(one: Etcd) -> None:
    given = settings(one, prefix())
    plain, other = Client(given, now), Stalled(given, now)
    mine, theirs = (Transactions(each, Layout(given.prefix)) for each in (plain, other))
    try:
        await write(mine, put("a"))
        await write(theirs, put("b"))
        await write(mine, put("c"))
        with pytest.raises(ConflictError):
            await write(mine, put("b"))
    finally:
        await plain.close()
        await other.close()
