"""A listener hears of commits of others to its tables, and of nothing else."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.fakes.own_network import own_network, run
from tests.proxy.kernel.nft_transactions import commit

from vipwire.linux.netlink.nftables import encode, xtables_rules
from vipwire.linux.netlink.nftables.generations import Generations
from vipwire.linux.netlink.nftables.listener import Commit, CommitListener
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family

pytestmark = pytest.mark.kernel


@pytest.fixture(autouse=True)
def _namespace() -> Iterator[None]:
    with own_network():
        run("nft add table ip ours")
        yield


@pytest.fixture
def listener() -> Iterator[CommitListener]:
    with closing(CommitListener(["ours"])) as made:
        yield made


@pytest.mark.parametrize(
    "command",
    [
        "flush ruleset",
        "delete table ip ours",
        "add table ip6 ours",
        "add chain ip ours foreign",
        "add set ip ours s { type ipv4_addr; elements = { 10.0.0.1 }; }",
    ],
)
def test_a_commit_to_the_table_is_heard_with_its_author(listener: CommitListener, command: str) -> None:
    with subprocess.Popen(["nft", command]) as nft:
        assert nft.wait() == 0
    assert listener.heard() == Commit("nft", nft.pid)
    assert listener.heard() is None


@pytest.mark.parametrize("table", ["others", "our", "ours-too"])
def test_a_commit_elsewhere_is_not_heard(listener: CommitListener, table: str) -> None:
    run(f"nft add table ip {table}")
    run(f"nft add chain ip {table} ours")
    run(f'nft add rule ip {table} ours counter comment "ours"')
    run(f"nft delete table ip {table}")
    assert listener.heard() is None


def test_commits_of_an_ignored_socket_wake_nobody(listener: CommitListener) -> None:
    with NetlinkSocket(NETLINK_NETFILTER) as ours, NetlinkSocket(NETLINK_NETFILTER) as others:
        listener.ignore(0xFFFF_FFFE)
        listener.ignore(ours.port)
        commit(ours, [encode.delete_table(Family.IPV4, "ours")])
        with pytest.raises(BlockingIOError):
            os.read(_unblocked(listener.fileno()), 1)
        commit(others, [xtables_rules.open_table(Family.IPV4, "ours")])
        heard = listener.heard()
    assert heard is not None
    assert heard.process == os.getpid()


def _unblocked(descriptor: int) -> int:
    os.set_blocking(descriptor, False)
    return descriptor


def test_a_commit_during_a_large_one_of_our_own_is_a_reason_to_look_and_our_own_is_none() -> None:
    with closing(Generations()) as generations, NetlinkSocket(NETLINK_NETFILTER) as ours:
        listener = generations.listen(["ours"], ours.port)
        assert generations.listen(["ours"], ours.port) is listener
        with generations.pause_during_own_commit(100_000):
            commit(ours, [xtables_rules.open_table(Family.IPV6, "ours")])
            generations.count_own(1)
        assert listener.heard() is None
        with generations.pause_during_own_commit(100_000):
            run("nft flush ruleset")
        assert listener.heard() == Commit()
        run("nft add table ip ours")
        heard = listener.heard()
        assert heard is not None
        assert heard.program == "nft"


def test_a_listener_that_lost_notifications_says_so_once(listener: CommitListener) -> None:
    with socket.socket(fileno=os.dup(listener.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    for number in range(10):
        run(f"nft add table ip others{number}")
    assert listener.heard() == Commit()
    assert listener.heard() is None
    run("nft add chain ip ours foreign")
    assert listener.heard() is not None


def test_after_a_large_commit_it_stops_listening_and_asks_for_a_look() -> None:
    with closing(CommitListener(["ours"], large=10_000)) as listener:
        listed = ", ".join(f"10.0.{number >> 8}.{number & 255}" for number in range(1000))
        script = f"add set ip ours s {{ type ipv4_addr; }}\nadd element ip ours s {{ {listed} }}\n"
        subprocess.run(["nft", "-f", "-"], input=script, text=True, check=True)
        heard = listener.heard()
        assert heard is not None
        assert heard.program == "nft"
        assert not listener.listening
        listener.resume()
        run("nft flush ruleset")
        assert listener.heard() is None
