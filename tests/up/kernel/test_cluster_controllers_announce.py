"""LoadBalancer addresses on a real link: what a neighbour's table holds, and that it is answered when it asks."""

import asyncio
import contextlib
import ipaddress
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.fakes.own_network import own_network, run

from vipwire.errors import ConfigError
from vipwire_up.announcing.announce import Announcer

pytestmark = pytest.mark.kernel
V4, V6 = "192.0.2.77", "2001:db8::77"
WRONG = "02:00:00:00:00:99"

_ANNOUNCE = "a.send_announcements(a.set_announced(['{}']))"


@contextlib.contextmanager
def neighbour() -> Iterator[str]:
    """Give this thread a network with the link `near`; yield what runs a command at its other end, `far`."""
    with own_network(), subprocess.Popen(["unshare", "-n", "cat"], stdin=subprocess.PIPE) as holder:
        there = f"nsenter -t {holder.pid} -n"
        try:
            ours = run("readlink /proc/self/ns/net")
            while run(f"readlink /proc/{holder.pid}/ns/net") == ours:  # it has yet to move into its own
                pass
            run(f"ip link add near type veth peer name far netns {holder.pid}")
            run("sysctl -qw net.ipv6.conf.near.accept_dad=0")
            run(f"{there} sysctl -qw net.ipv6.conf.far.accept_dad=0")
            run("ip link set near up")
            run(f"{there} ip link set far up")
            for address in ("192.0.2.9/24", "2001:db8::9/64"):
                run(f"{there} ip addr add {address} dev far nodad")
            yield there
        finally:
            holder.communicate()


def hardware() -> str:
    return run("ip -br link show near").split()[2]


def table(there: str, address: str) -> str:
    return run(f"{there} ip neigh show {address} dev far")


async def until_it_knows(there: str, address: str, what: str, *, asks: bool = False) -> None:
    async with asyncio.timeout(60):
        while what not in table(there, address):
            await (ask(there, address) if asks else asyncio.sleep(0.02))


async def ask(there: str, address: str) -> None:
    """Have the neighbour send a datagram, for which it must find out where the address is."""
    send = f"echo > /dev/udp/{address}/9"
    asking = await asyncio.create_subprocess_exec(*there.split(), "bash", "-c", send)
    await asking.wait()


@pytest.mark.parametrize("address", [V4, V6])
async def test_a_neighbour_that_knows_another_one_is_told(address: str) -> None:
    with neighbour() as there, contextlib.closing(Announcer("near")) as announcer:
        run(f"{there} ip neigh replace {address} lladdr {WRONG} dev far nud stale")
        assert WRONG in table(there, address)
        announcer.send_announcements(announcer.set_announced([address]))
        await until_it_knows(there, address, hardware())


@pytest.mark.parametrize("address", [V4, V6])
async def test_a_neighbour_that_asks_is_answered_while_the_address_is_ours(address: str) -> None:
    with neighbour() as there:
        loop = asyncio.get_running_loop()
        with contextlib.closing(Announcer("near")) as announcer:
            announcer.listen(loop)
            announcer.set_announced([V4, V6])
            await until_it_knows(there, address, hardware(), asks=True)
            run(f"{there} ip neigh flush dev far")
            announcer.set_announced((), [V4, V6])
            await ask(there, address)
            assert hardware() not in table(there, address)
            for each in announcer.sockets:
                loop.remove_reader(each)


def test_an_interface_that_is_not_there_is_said() -> None:
    with pytest.raises(ConfigError, match="--announce-interface nowhere: no interface with this name"):
        Announcer("nowhere")


@pytest.mark.parametrize("address", [V4, V6])
async def test_another_machine_that_has_an_address_of_ours_is_heard(address: str) -> None:
    code = f"from vipwire_up.announcing.announce import Announcer as A; a = A('far'); {_ANNOUNCE.format(address)}"
    with neighbour() as there:
        async with asyncio.timeout(60):
            heard: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

            def claimed(whose: bytes, hardware: bytes) -> None:
                if not heard.done():
                    heard.set_result((whose, hardware))

            with contextlib.closing(Announcer("near", claimed)) as announcer:
                announcer.listen(asyncio.get_running_loop())
                announcer.send_announcements(announcer.set_announced([V4, V6]))
                while not heard.done():
                    other = await asyncio.create_subprocess_exec(*there.split(), sys.executable, "-c", code)
                    await other.wait()
                whose, hardware = heard.result()
                assert whose == ipaddress.ip_address(address).packed
                assert hardware.hex(":") == run(f"{there} ip -br link show far").split()[2]


@pytest.mark.parametrize("address", [V4, V6])
async def test_an_address_that_is_handed_on_is_answered_for_until_its_next_owner_is_heard(address: str) -> None:
    """A question between the two owners would be repeated a second later: so long a new client would wait."""
    code = f"from vipwire_up.announcing.announce import Announcer as A; a = A('far'); {_ANNOUNCE.format(address)}"
    with neighbour() as there:
        async with asyncio.timeout(60):
            heard: list[bytes] = []
            loop = asyncio.get_running_loop()
            with contextlib.closing(Announcer("near", lambda whose, _: heard.append(whose))) as announcer:
                announcer.listen(loop)
                announcer.set_announced([V4, V6])
                announcer.answer_until_handed_over([address])
                await until_it_knows(there, address, hardware(), asks=True)
                other = await asyncio.create_subprocess_exec(*there.split(), sys.executable, "-c", code)
                await announcer.wait_until_released()
                await other.wait()
                run(f"{there} ip neigh flush dev far")
                await ask(there, address)
                assert hardware() not in table(there, address)
                assert not heard
                for each in announcer.sockets:
                    loop.remove_reader(each)


def test_an_address_that_is_handed_on_is_free_for_who_probes() -> None:
    code = (
        "import asyncio; from vipwire_up.announcing.announce import Announcer as A; a = A('far')\n"
        "async def probe():\n a.listen(asyncio.get_running_loop())\n"
        f" print(sorted(await a.probe(['{V4}', '192.0.2.78'], 5, 0.05)))\nasyncio.run(probe())"
    )

    async def scenario(there: str) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.closing(Announcer("near")) as announcer:
            announcer.listen(loop)
            announcer.set_announced([V4, "192.0.2.78"])
            announcer.answer_until_handed_over([V4])
            command = (*there.split(), sys.executable, "-c", code)
            probing = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            said, _ = await probing.communicate()
            assert said.decode().strip() == "['192.0.2.78']"
            for each in announcer.sockets:
                loop.remove_reader(each)

    with neighbour() as there:
        asyncio.run(asyncio.wait_for(scenario(there), 60))
