"""A relay at work, with real sockets on loopback: what is carried, what is tried, what is refused."""

import os
import socket
import threading
from functools import partial

import pytest
from tests.fakes.ports import free_port
from tests.fakes.relaying import HERE, Peer, Relaying, client, heard, peers, readable, relaying, was_reset

from vipwire.relay.header import encode_proxy_header
from vipwire.relay.listener import CIRCLE, DIAL_TIMEOUTS, RESERVE
from vipwire.relay.messages import (
    NOWHERE,
    AskNotes,
    Hello,
    Listener,
    Notes,
    Observe,
    Observed,
    Opened,
    Put,
    Refused,
    RelaySettings,
    Remove,
    Retire,
    Share,
    SocketAddress,
    Welcome,
)
from vipwire.relay.stream import RelayedConnection


def settled(at: Relaying, sock: socket.socket, peer: Peer) -> socket.socket:
    """Wait until the client's connection has come to the endpoint; return the endpoint's side."""
    del sock
    found: socket.socket = at.until(peer.accept)
    return found


def test_what_either_side_says_the_other_hears() -> None:
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        served = settled(at, sock, peer)
        sock.send(b"question")
        assert at.until(lambda: heard(served)) == b"question"
        served.send(b"answer")
        assert at.until(lambda: heard(sock)) == b"answer"
        found = at.count("web", peer.place)
        assert (found.connections, found.open, found.sent, found.received) == (1, 1, 8, 6)


def test_what_a_client_sends_before_an_endpoint_answers_is_not_lost() -> None:
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        sock.send(b"early")
        sock.shutdown(socket.SHUT_WR)
        served = settled(at, sock, peer)
        assert at.until(lambda: heard(served)) == b"early"
        at.until(lambda: heard(served) == b"")
        served.send(b"late")
        assert at.until(lambda: heard(sock)) == b"late"


@pytest.mark.parametrize("first", ["client", "endpoint"])
def test_one_direction_may_end_before_the_other(first: str) -> None:
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        served = settled(at, sock, peer)
        one, other = (sock, served) if first == "client" else (served, sock)
        one.send(b"done")
        one.shutdown(socket.SHUT_WR)
        assert at.until(lambda: heard(other)) == b"done"
        at.until(lambda: heard(other) == b"")
        other.send(b"still here")
        assert at.until(lambda: heard(one)) == b"still here"
        other.shutdown(socket.SHUT_WR)
        at.until(lambda: heard(one) == b"")
        at.until(lambda: at.counted().links == 0)


@pytest.mark.parametrize("who", ["client", "endpoint"])
def test_an_abort_is_passed_on_as_an_abort(who: str) -> None:
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        served = settled(at, sock, peer)
        sock.send(b"begin")
        at.until(lambda: heard(served))
        one, other = (sock, served) if who == "client" else (served, sock)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        one.close()
        at.until(lambda: was_reset(other))
        assert at.counted().links == 0


@pytest.mark.parametrize("ahead", [False, True], ids=["up", "down"])
def test_much_is_carried_through_a_pipe_and_arrives_whole(ahead: bool) -> None:  # noqa: FBT001
    """So much that neither side's buffers hold it: the half has to wait for its sink again and again."""
    data = os.urandom(1 << 20) * 24
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        served = settled(at, sock, peer)
        source, sink = (served, sock) if ahead else (sock, served)
        source.settimeout(None)
        sender = threading.Thread(target=_pour, args=(source, data))
        sender.start()
        got = bytearray()

        def complete() -> bool:
            piece = heard(sink, 300_000)
            got.extend(piece or b"")
            return piece == b""

        at.until(complete)
        sender.join()
        assert got == data
        found = at.count("web", peer.place)
        assert (found.received if ahead else found.sent) == len(data)


def _pour(source: socket.socket, data: bytes) -> None:
    source.sendall(data)
    source.shutdown(socket.SHUT_WR)


@pytest.mark.attack
def test_a_client_that_reads_nothing_holds_up_nobody_else() -> None:
    with relaying() as at, peers(2) as (slow, quick):
        slow_port, quick_port = at.listen("slow", slow.place), at.listen("quick", quick.place)
        with client(slow_port) as deaf, client(quick_port) as sock:
            served = settled(at, deaf, slow)
            sent = 0

            def stuck() -> bool:
                nonlocal sent
                try:
                    sent += served.send(bytes(1 << 16))
                except BlockingIOError:
                    at.loop.run_round(0.02)
                    return not _writable(served)
                return False

            at.until(stuck)
            answering = settled(at, sock, quick)
            answering.send(b"prompt")
            assert at.until(lambda: heard(sock)) == b"prompt"
            assert sent > 1 << 16


def _writable(sock: socket.socket) -> bool:
    try:
        sock.send(b"x")
    except BlockingIOError:
        return False
    return True


def test_when_nobody_answers_the_client_is_told_by_a_reset() -> None:
    with relaying() as at, peers(3) as gone:
        places = [peer.refuse() for peer in gone]
        with client(at.listen("web", *places)) as sock:
            at.until(lambda: was_reset(sock))
        assert sum(at.count("web", place).failed for place in places) == len(DIAL_TIMEOUTS)
        assert at.counted().refused == {"no endpoint answers": 1}
        assert at.counted().links == 0
        assert "web: refusing clients: no endpoint answers" in at.said()


def test_an_endpoint_that_accepts_and_resets_is_the_clients_affair_alone() -> None:
    with relaying() as at, peers(2) as (rude, kind):
        rude_port, kind_port = at.listen("rude", rude.place), at.listen("kind", kind.place)
        with client(rude_port) as one, client(kind_port) as other:
            served = settled(at, one, rude)
            at.until(lambda: at.count("rude", rude.place).connections == 1)
            served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            served.close()
            at.until(lambda: was_reset(one))
            settled(at, other, kind).send(b"here")
            assert at.until(lambda: heard(other)) == b"here"


@pytest.mark.parametrize("protocol", [6, 17])
def test_a_relay_that_is_its_own_endpoint_ends_the_circle(protocol: int) -> None:
    with relaying(limit=256) as at, peers(1) as (peer,):
        port = at.listen("web", peer.place, protocol=protocol)
        assert at.listen("web", SocketAddress(HERE, port), protocol=protocol) == port
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM if protocol == 6 else socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            sock.settimeout(0)
            sock.send(b"round and round")
            assert at.until(lambda: at.counted().refused) == {CIRCLE: 1}
            assert at.count("web", SocketAddress(HERE, port)).connections == 4
            if protocol == 6:
                at.until(lambda: was_reset(sock))


def test_a_second_write_waits_for_no_acknowledgement_and_the_first_needs_no_call() -> None:
    with relaying() as at, peers(1) as (peer,), client(at.listen("web", peer.place)) as sock:
        sock.send(b"first")
        served = settled(at, sock, peer)
        assert at.until(lambda: heard(served)) == b"first"
        (link,) = [each for each in at.loop.list_handlers() if isinstance(each, RelayedConnection)]
        delays = [link.server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0]
        sock.send(b"second")
        assert at.until(lambda: heard(served)) == b"second"
        delays.append(link.server.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0)
        assert delays == [True, False]


@pytest.mark.attack
def test_at_the_limit_new_clients_are_refused_and_the_others_go_on() -> None:
    budget = 8
    with relaying(RESERVE + 2 * budget + 2) as at, peers(1) as (peer,), peers(1) as (neighbour,):
        port, other = at.listen("web", peer.place), at.listen("neighbour", neighbour.place)
        most = at.relay.budget.most_each
        socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(most + 3)]
        try:
            at.until(lambda: at.counted().refused.get("too many open files") == 3)
            for sock in socks[most:]:
                sock.settimeout(0)
                at.until(partial(was_reset, sock))
            assert at.counted().links == most < at.relay.budget.most
            with client(other) as sock:
                settled(at, sock, neighbour).send(b"room")
                assert at.until(lambda: heard(sock)) == b"room", "what one listener is flooded with leaves some room"
            assert "web: refusing clients: too many open files" in at.said()
        finally:
            for sock in socks:
                sock.close()
        while peer.accept():
            pass
        for sock in peer.accepted:
            sock.close()
        at.until(lambda: at.counted().links <= 1)
        with client(port) as sock:
            settled(at, sock, peer)
            at.until(lambda: at.count("web", peer.place).open == 1)


@pytest.mark.attack
def test_clients_that_send_nothing_cost_only_their_place() -> None:
    with relaying() as at, peers(1) as (peer,):
        port = at.listen("web", peer.place)
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        try:
            at.until(lambda: at.counted().links == 50)
            with client(port) as sock:
                sock.send(b"quick")
                at.until(lambda: at.count("web", peer.place).sent == 5)
        finally:
            for each in silent:
                each.close()


def datagrams(at: Relaying, key: str, *places: SocketAddress, **fields: object) -> int:
    return at.listen(key, *places, protocol=17, **fields)


@pytest.mark.parametrize("address", ["127.0.0.5", "127.0.0.1", "::1"])
def test_at_all_addresses_an_answer_comes_from_the_one_that_was_asked(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        relaying() as at,
        peers(1, kind=socket.SOCK_DGRAM) as (peer,),
        socket.socket(family, socket.SOCK_DGRAM) as sock,
    ):
        port = free_port()
        binds = (SocketAddress(bytes(4), port), SocketAddress(bytes(16), port))
        answer = at.relay.answer(Put({"dns": Listener("dns", 17, binds, (Share(peer.place),))}))
        assert isinstance(answer, Opened), answer
        sock.connect((address, port))  # takes nothing from other addresses
        sock.settimeout(0)
        sock.send(b"q")
        at.until(lambda: readable(peer.listening))
        _, source = peer.listening.recvfrom(100)
        peer.listening.sendto(b"a", source)
        assert at.until(lambda: heard(sock)) == b"a"


def test_what_comes_to_nobodys_share_is_dropped_and_counted() -> None:
    with relaying() as at, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", datagrams(at, "dns", NOWHERE)))
        sock.send(b"q")
        assert at.until(lambda: at.counted().refused) == {"the listener refuses clients": 1}


def _is_silent(at: Relaying, peer: Peer) -> bool:
    return at.count("dns", peer.place).open == 0


def test_an_idle_client_loses_its_socket_and_finds_its_endpoint_again() -> None:
    with relaying() as at, peers(3, kind=socket.SOCK_DGRAM) as servers:
        at.relay.answer(RelaySettings(udp_timeout=0.01))
        port = datagrams(at, "dns", *(peer.place for peer in servers))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            found = []
            for _ in range(3):
                sock.send(b"q")
                peer = at.until(lambda: next((each for each in servers if readable(each.listening)), None))
                peer.listening.recvfrom(100)
                found.append(peer.place)
                at.until(partial(_is_silent, at, peer))
            assert len(set(found)) == 1
            assert at.count("dns", found[0]).connections == 3


def test_a_datagram_client_leaves_an_endpoint_that_goes_and_keeps_one_that_serves_on() -> None:
    with relaying() as at, peers(2, kind=socket.SOCK_DGRAM) as (old, new):
        port = datagrams(at, "dns", old.place)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))
            for places, serving, expected in (
                ((old.place,), (), old),
                ((new.place,), (old.place, new.place), old),
                ((new.place,), (new.place,), new),
            ):
                assert datagrams(at, "dns", *places, serving=serving) == port
                sock.send(b"q")
                at.until(partial(readable, expected.listening))
                expected.listening.recvfrom(100)


def test_an_endpoint_is_told_the_node_port_of_a_datagram_that_was_led_past_it() -> None:
    with relaying() as at, peers(1, kind=socket.SOCK_DGRAM) as (peer,):
        named = free_port()
        binds = (SocketAddress(HERE, 0), SocketAddress(HERE, named))
        described = Listener("dns", 17, binds, (Share(peer.place),), proxy_protocol=2)
        answer = at.relay.answer(Put({"dns": described}))
        assert isinstance(answer, Opened)
        assert answer.ports["dns"][1] == named
        for number in answer.ports["dns"]:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect(("127.0.0.1", number))
                sock.send(b"q")
                at.until(partial(readable, peer.listening))
                told = encode_proxy_header(2, sock.getsockname(), ("127.0.0.1", named), datagram=True)
                assert peer.listening.recvfrom(100)[0] == told + b"q"


def test_an_endpoint_without_a_server_is_left_for_another() -> None:
    with relaying() as at, peers(2, kind=socket.SOCK_DGRAM) as (gone, there):
        place = gone.refuse()
        port = datagrams(at, "dns", place, there.place)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", port))

            def arrives() -> bool:
                sock.send(b"q")
                at.loop.run_round(0.02)
                return readable(there.listening)

            at.until(arrives)
            assert at.count("dns", place).failed == 1


def test_a_taken_port_is_refused_as_a_whole_with_its_reason() -> None:
    with relaying() as at, peers(1) as (peer,):
        taken = Listener("default/web node port", 6, (peer.place,), (Share(peer.place),))
        good = Listener("good", 6, (SocketAddress(HERE, 0),), (Share(peer.place),))
        answer = at.relay.answer(Put({"good": good, "bad": taken}))
        assert isinstance(answer, Refused)
        assert answer.key == "bad"
        assert f"another process uses 127.0.0.1:{peer.place.port}/tcp" in answer.why
        assert at.counted().listeners == {}


def test_a_range_that_is_too_small_says_so() -> None:
    with relaying() as at, peers(2) as (one, other):
        at.relay.answer(RelaySettings(ports=(one.place.port, one.place.port)))
        answer = at.relay.answer(Put({"web": Listener("web", 6, (SocketAddress(HERE, 0),), (Share(other.place),))}))
        assert isinstance(answer, Refused)
        assert f"every port of {one.place.port}-{one.place.port} is in use: widen --proxy-port-range" in answer.why


def test_ports_come_from_the_range() -> None:
    with relaying() as at, peers(1) as (peer,):
        first = next(port for port in iter(free_port, 0) if all(_free(port + each) for each in range(4)))
        at.relay.answer(RelaySettings(ports=(first, first + 3)))
        assert {at.listen(f"web-{number}", peer.place) for number in range(4)} == set(range(first, first + 4))


def _free(port: int) -> bool:
    with socket.socket() as sock:
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def test_one_listener_may_take_the_place_of_another_with_those_who_wait_there() -> None:
    with relaying() as at, peers(2) as (old, new):
        port = at.listen("probe", old.place)
        at.relay.answer(Remove(["probe"]))
        at.loop.run_round(0)
        place = SocketAddress(HERE, port)
        at.relay.answer(Put({"one": Listener("one", 6, (place,), (Share(old.place),))}))
        with client(port) as waiting:
            answer = at.relay.answer(Put({"two": Listener("two", 6, (place,), (Share(new.place),))}, ["one"]))
            assert isinstance(answer, Opened)
            settled(at, waiting, new)
        assert list(at.counted().listeners) == ["two"]


def test_it_knows_who_it_is_and_what_it_listens_for() -> None:
    with relaying() as at, peers(1) as (peer,):
        at.relay.answer(RelaySettings((0, 0), 7.0))
        port = at.listen("web", peer.place)
        welcome, observed = at.relay.answer(Hello()), at.relay.answer(Observe())
        assert isinstance(welcome, Welcome)
        assert welcome.settings.udp_timeout == 7.0
        assert isinstance(observed, Observed)
        assert observed.ports == {"web": [port]}
        assert observed.listeners["web"].shares == (Share(peer.place),)


def test_notes_are_told_once_with_how_often() -> None:
    with relaying() as at:
        for _ in range(3):
            at.loop.note("something")
        assert at.relay.answer(AskNotes()) == Notes([("something", 3)])
        assert at.relay.answer(AskNotes()) == Notes([])


def test_a_relay_that_retires_ends_with_its_last_connection() -> None:
    with relaying() as at, peers(1) as (peer,):
        port = at.listen("web", peer.place)
        with client(port) as sock:
            served = settled(at, sock, peer)
            at.relay.answer(Retire())
            at.loop.run_round(0)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            sock.send(b"last")
            assert at.until(lambda: heard(served)) == b"last"
            assert not at.loop.stopped
            sock.close()
            served.close()
            at.until(lambda: at.loop.stopped)
