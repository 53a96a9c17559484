"""The loop of a process that serves: many sockets that are ready do not keep its other work waiting."""

import asyncio
import contextlib
import itertools
import socket

from vipwire.process_lifecycle import event_loop

CLIENTS = 300


def test_other_work_has_its_turn_between_sockets() -> None:
    async def play() -> list[int]:
        loop, handled, seen = asyncio.get_running_loop(), list[int](), list[int]()
        with contextlib.ExitStack() as opened:
            pairs = [socket.socketpair() for _ in range(CLIENTS)]
            for number, (mine, theirs) in enumerate(pairs):
                opened.enter_context(mine)
                opened.enter_context(theirs).send(b"x")

                def handle(number: int = number, mine: socket.socket = mine) -> None:
                    handled.append(number)
                    loop.remove_reader(mine)
                    loop.remove_reader(pairs[(number + 1) % CLIENTS][0])  # as if that one had closed meanwhile

                loop.add_reader(mine, handle)
            while not seen or len(handled) > seen[-1]:
                seen.append(len(handled))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        assert len(handled) == len(set(handled)) == CLIENTS // 2
        return seen

    seen = event_loop.run_in_loop(play())
    assert max(after - before for before, after in itertools.pairwise(seen)) < CLIENTS // 2
