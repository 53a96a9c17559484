"""A relay with workers: real processes that share sockets, turns, affinity and counters. One may be killed."""

import os
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.relaying import HERE, Peer, Relaying, heard, peers, relaying, was_reset

from vipwire.backends.userspace.control_client import Call
from vipwire.backends.userspace.messages import (
    AskNotes,
    Done,
    Hello,
    Listener,
    Notes,
    Opened,
    Place,
    Put,
    Refused,
    Remove,
    Retire,
    Settings,
    Share,
    Welcome,
)
from vipwire.backends.userspace.relay.balance import Memory, Target
from vipwire.backends.userspace.relay.workers.board import OPEN, Board
from vipwire.backends.userspace.relay.workers.handed import Rows, SeatedPool
from vipwire.backends.userspace.relay.workers.shared import SharedMemory, SharedPool

WORKERS = 2


@contextmanager
def working(workers: int = WORKERS) -> Iterator[Relaying]:
    """Have a relay whose workers are ready."""
    with relaying() as at:
        assert at.relay.answer(Settings(workers=workers)) == Done()
        try:
            at.until(lambda: len(serving(at)) == workers)
            yield at
        finally:
            at.relay.answer(Retire())
            crew = at.relay.crew
            assert crew is not None
            crew.terminate()
            at.until(lambda: not crew.members)
            crew.close()


def serving(at: Relaying) -> list[int]:
    """Return the processes that serve."""
    assert at.relay.crew is not None
    return [member.pid for member in at.relay.crew.members if member.serves]


def connected(port: int) -> socket.socket:
    """Connect; the socket does not block."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=60)
    sock.settimeout(0)
    return sock


def accepted(at: Relaying, found: list[Peer]) -> Peer:
    """Wait until an endpoint has another connection; return which."""
    peer: Peer = at.until(lambda: next((peer for peer in found if peer.accept()), None))
    return peer


def two_for(at: Relaying, pid: int, port: int, found: list[Peer], stack: ExitStack) -> list[socket.socket]:
    """Make two connections that this worker takes, while the others stand still.

    The kernel may have woken one of these for the first, so that only the second wakes who is to have both.
    """
    others = [each for each in serving(at) if each != pid]
    for each in others:
        os.kill(each, signal.SIGSTOP)
    clients = [stack.enter_context(connected(port)) for _ in range(2)]
    for _ in clients:
        accepted(at, found)
    for each in others:
        os.kill(each, signal.SIGCONT)
    return clients


class Two:
    """The pools of two workers, on one board, as a relay seats them."""

    def __init__(self, **fields: Any) -> None:
        first = Board.create(2)
        self.boards = [first, Board(os.dup(first.fd), 2, 1)]
        places = [Place(HERE, port) for port in (1, 2, 3)]
        self.listener = Listener("web", 6, (Place(HERE, 0),), tuple(map(Share, places)), **fields)
        rows = Rows(first)
        self.relays = SeatedPool(first, rows)
        self.relays.take(self.listener, Memory())
        self.pools = [SharedPool(board) for board in self.boards]
        for pool in self.pools:
            pool.seat(self.listener, self.relays.seats)

    def choose(self, which: int, client: str = "192.0.2.1", now: float = 0.0) -> Target:
        """Have a worker choose, and the endpoint has one connection more."""
        target = self.pools[which].choose(client, 1, now)
        assert target is not None
        target.open += 1
        return target

    def close(self) -> None:
        """Let go of all."""
        for board in self.boards:
            board.close()


@contextmanager
def two(**fields: Any) -> Iterator[Two]:
    """Have the pools of two workers."""
    made = Two(**fields)
    try:
        yield made
    finally:
        made.close()


def test_turns_are_one_round_whichever_worker_takes_the_next() -> None:
    with two() as at:
        seen = [at.choose(which).place.port for which in (0, 1, 1, 0, 0, 1, 0, 1, 1)]
        assert sorted(seen[:3]) == [1, 2, 3]
        assert seen == seen[:3] * 3


def test_a_worker_that_comes_later_goes_on_where_the_others_are() -> None:
    with two() as at:
        seen = [at.choose(0).place.port for _ in range(4)]
        at.pools[1] = SharedPool(at.boards[1])
        at.pools[1].seat(at.listener, at.relays.seats)
        assert [at.choose(1).place.port for _ in range(2)] == seen[1:3]


def test_a_client_keeps_its_endpoint_in_every_worker_and_at_groups_beside() -> None:
    with two(affinity=60, group="one", beside="two") as at:
        had = at.choose(0).place
        assert {at.choose(which, now=float(now)).place for now, which in enumerate((1, 0, 1, 1))} == {had}
        assert at.choose(1, "192.0.2.2").place != had
        beside = SharedPool(at.boards[1])
        beside.seat(
            Listener("b", 6, (), at.listener.shares, affinity=60, group="three", beside="one"), at.relays.seats
        )
        found = beside.choose("192.0.2.1", 1, 5.0)
        assert found is not None
        assert found.place == had


def test_an_endpoint_that_fails_rests_for_all_workers() -> None:
    with two() as at:
        bad = [pool.targets[Place(HERE, 1)] for pool in at.pools]
        assert [at.pools[which].missed(bad[which], 1.0) for which in (0, 1, 0)] == [False, False, True]
        assert {at.choose(which, now=2.0).place.port for which in (0, 1) * 3} == {2, 3}
        assert at.relays.targets[Place(HERE, 1)].totals() == (0, 0, 0, 0, 3)


def test_the_fewest_connections_of_all_workers_win() -> None:
    with two(algorithm="least-connections") as at:
        assert sorted(at.choose(which).place.port for which in (0, 0, 1)) == [1, 2, 3]
        at.pools[0].targets[Place(HERE, 2)].open -= 1
        assert at.choose(1).place.port == 2


def test_both_at_once_deal_exactly() -> None:
    with working() as at, peers(4) as found, ExitStack() as stack:
        port = at.listen("web", *(peer.place for peer in found))
        dealt = Counter[int]()
        for _ in range(15):
            clients = [stack.enter_context(connected(port)) for _ in range(8)]
            for _ in clients:
                dealt[found.index(accepted(at, found))] += 1
        assert dict(dealt) == dict.fromkeys(range(4), 30)
        counted = at.counted()
        assert [each.connections for each in counted.listeners["web"]] == [30] * 4
        assert sum(each.open for each in counted.listeners["web"]) == counted.links == 120


def test_a_worker_that_is_killed_costs_its_connections_and_nothing_else() -> None:
    with working() as at, peers(2) as found, ExitStack() as stack:
        port = at.listen("web", *(peer.place for peer in found))
        dies, lives = serving(at)
        lost = two_for(at, dies, port, found, stack)
        kept = two_for(at, lives, port, found, stack)
        assert [len(peer.accepted) for peer in found] == [2, 2]
        os.kill(dies, signal.SIGKILL)
        for client in lost:
            at.until(lambda client=client: was_reset(client) or heard(client) == b"")  # type: ignore[misc]
        at.until(lambda: dies not in serving(at) and len(serving(at)) == WORKERS)
        for peer in found:
            peer.accepted[-1].send(b"on")
        for client in kept:
            assert at.until(lambda client=client: heard(client)) == b"on"  # type: ignore[misc]
        assert [at.count("web", peer.place).open for peer in found] == [1, 1]
        (new,) = {*serving(at)} - {lives}
        two_for(at, new, port, found, stack)
        assert [at.count("web", peer.place).connections for peer in found] == [3, 3]
        notes = at.relay.answer(AskNotes())
        assert isinstance(notes, Notes)
        assert [f"(process {dies}) was ended by signal 9" in text for text, _ in notes.notes] == [True]


def test_whoever_holds_a_lock_and_is_killed_holds_up_nobody() -> None:
    board = Board.create(1)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        board.lock_row(0)
        with board.client(board.digest("client")):
            os.write(write, b"x")
            signal.pause()
    os.read(read, 1)
    os.kill(child, signal.SIGKILL)
    board.lock_row(0)
    with board.client(board.digest("client")):
        os.waitpid(child, 0)
    board.unlock_row(0)
    for fd in (read, write):
        os.close(fd)
    board.close()


def test_changes_reach_all_workers_and_a_listener_that_ends_ends_everywhere() -> None:
    with working() as at, peers(2) as (old, new), ExitStack() as stack:
        port = at.listen("web", old.place)
        stack.enter_context(connected(port))
        accepted(at, [old])
        at.relay.answer(Put({"web": Listener("web", 6, (Place(HERE, 0),), (Share(new.place),))}))
        for pid in serving(at):
            two_for(at, pid, port, [new], stack)
        at.relay.answer(Remove(["web"]))
        with pytest.raises(ConnectionRefusedError):
            connected(port)
        old.accepted[0].send(b"still there")


def test_more_endpoints_than_there_is_room_for_are_refused() -> None:
    with working() as at, peers(1) as (peer,):
        crew = at.relay.crew
        assert crew is not None
        kept = at.listen("web", peer.place)
        taken = [crew.rows.take() for _ in range(3)]
        crew.rows.limit = 5
        listener = Listener("wide", 6, (Place(HERE, 0),), (Share(peer.place),))
        assert isinstance(at.relay.answer(Put({"wide": listener})), Refused)
        for row in taken:
            crew.rows.leave(row)
        crew.rows.sweep()
        assert not isinstance(at.relay.answer(Put({"wide": listener})), Refused)
        connected(kept).close()


def test_a_row_is_given_away_again_when_no_connection_counts_there() -> None:
    with working() as at, peers(1) as (peer,), ExitStack() as stack:
        crew = at.relay.crew
        assert crew is not None
        port = at.listen("web", peer.place)
        client = stack.enter_context(connected(port))
        at.until(peer.accept)
        at.relay.answer(Remove(["web"]))
        crew.rows.sweep()
        before = crew.rows.room()
        client.close()
        peer.accepted[0].close()
        while crew.rows.room() == before:
            at.loop.round(0.01)
            crew.rows.sweep()


def test_a_full_bucket_forgets_who_stayed_away_longest() -> None:
    board = Board.create(1)
    memory = SharedMemory(board, "group")
    board.digest = lambda text: text.encode().rjust(16, b"\0")  # type: ignore[method-assign]  # all in one bucket
    for number in range(17):
        memory.note(f"{number:02}", Place(HERE, number), float(number))
    assert memory.recall("00", 20.0, 60.0) is None
    assert memory.recall("01", 20.0, 60.0) == Place(HERE, 1)
    assert memory.recall("16", 20.0, 60.0) == Place(HERE, 16)
    assert memory.recall("16", 80.0, 60.0) is None
    assert board.total(0, OPEN) == 0
    board.close()


def test_a_relay_that_retires_ends_with_the_last_connection_of_its_workers() -> None:
    with working() as at, peers(1) as (peer,), ExitStack() as stack:
        port = at.listen("web", peer.place)
        client = stack.enter_context(connected(port))
        at.until(peer.accept)
        at.relay.answer(Retire())
        assert not at.loop.stopped
        peer.accepted[0].send(b"to the end")
        assert at.until(lambda: heard(client)) == b"to the end"
        client.close()
        peer.accepted[0].close()
        at.until(lambda: at.loop.stopped)


@contextmanager
def process(*places: Place) -> Iterator[tuple[int, list[int], int]]:
    """Have a relay in a process of its own with a listener; yields it, its workers, and the listener's port."""
    call = Call.start(f"vipwire-test-{os.getpid()}", Settings(workers=WORKERS))
    listener = Listener("web", 6, (Place(HERE, 0),), tuple(map(Share, places)))
    opened = call.ask(Put({"web": listener}), Opened)
    pid = call.ask(Hello(), Welcome).pid
    workers = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    try:
        yield pid, workers, opened.ports["web"][0]
    finally:
        call.close()
        for each in (pid, *workers):
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)


def refused(port: int) -> bool:
    """Tell whether nobody listens there any more."""
    try:
        connected(port).close()
    except ConnectionRefusedError:
        return True
    return False


def gone(pids: list[int]) -> bool:
    """Tell whether these processes have ended."""
    return not any(Path(f"/proc/{pid}/cmdline").exists() and _cmdline(pid) for pid in pids)


def hung_up(peer: Peer) -> bool:
    """End all connections that have come to an endpoint."""
    while peer.accept():
        pass
    for sock in peer.accepted:
        sock.close()
    return True


def _cmdline(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def test_a_relay_that_is_killed_leaves_its_workers_their_connections_and_nothing_to_listen_at() -> None:
    with relaying() as at, peers(1) as (peer,), process(peer.place) as (pid, workers, port), ExitStack() as stack:
        assert len(workers) == WORKERS
        client = stack.enter_context(connected(port))
        accepted(at, [peer])
        os.kill(pid, signal.SIGKILL)
        at.until(lambda: refused(port))
        peer.accepted[0].send(b"on")
        assert at.until(lambda: heard(client)) == b"on"
        client.close()
        at.until(lambda: hung_up(peer) and gone(workers))


def test_a_relay_that_is_told_to_end_ends_with_its_workers() -> None:
    with relaying() as at, peers(1) as (peer,), process(peer.place) as (pid, workers, port), ExitStack() as stack:
        client = stack.enter_context(connected(port))
        accepted(at, [peer])
        os.kill(pid, signal.SIGTERM)
        at.until(lambda: gone([pid, *workers]))
        at.until(lambda: was_reset(client) or heard(client) == b"")


def test_another_number_of_workers_is_another_relay() -> None:
    with peers(1) as (peer,), process(peer.place) as (pid, _, port):
        other = Call.start(f"vipwire-test-{os.getpid()}", Settings(workers=1))
        assert other.ask(Hello(), Welcome).pid != pid
        assert refused(port)
        other.tell(Retire())
        other.close()
