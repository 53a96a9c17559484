"""Whatever HAProxy, or what is at its sockets, says: an answer, or a ControlError; never anything else."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from vipwire.model.net import parse_address
from vipwire_l7.ingress.haproxy.slots import Slots
from vipwire_l7.ingress.plan.sites import Server
from vipwire_l7.ingress.run.control import ControlError, ask, command, mark_of, processes
from vipwire_l7.ingress.run.statistics import Statistics
from vipwire_l7.ingress.watch.objects import BackendEndpoint, Usability

SLOTS: Slots = (Server(BackendEndpoint(parse_address("127.0.0.1"), Usability.READY), 80), None)
HEADER = "# pxname,svname,stot,bin,bout,econ,hrsp_2xx,scur,qcur,rtime,"
WORDS = (
    *("> ", "\n> ", "+ ", "Success", "Failed!", "description: vipwire-1-2", "# programs", "#<PID>", "master"),
    *("worker", "1", "0", "-1", "2147483648", "9" * 30, "\u00b2", "\u0663", "default:web:80", "s1", "s0", "s99"),
    *(",", '"', "\n"),
)
words = st.sampled_from(WORDS)
lines = st.lists(words | st.text(max_size=5), max_size=30)
talk = (
    st.binary(max_size=300)
    | lines.map(lambda some: " ".join(some).encode(errors="replace"))
    | st.builds(lambda some: "".join(some).encode(errors="replace"), lines)
)


class Haproxy:
    """A socket that says what it is told to, prompt or not, and hangs up."""

    def __init__(self, folder: Path) -> None:
        self.path, self.says = folder / "haproxy.sock", b""
        self.runner = asyncio.Runner()
        self.server = self.runner.run(asyncio.start_unix_server(self._speak, self.path))

    async def _speak(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.says)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def close(self) -> None:
        self.server.close()
        await self.server.wait_closed()


@pytest.fixture(scope="module")
def haproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Haproxy]:
    made = Haproxy(tmp_path_factory.mktemp("haproxy"))
    yield made
    made.runner.run(made.close())
    made.runner.close()


@given(says=talk | st.lists(talk, max_size=4).map(lambda some: b"> " + b"\n> ".join(some) + b"\n> "))
@example(says="\u00b2 master 0\n# programs".encode())
@example(says=b"99999999999999999999999999 master 0\n# programs")
@example(says=b"x" * 70_000)
def test_any_bytes_at_the_sockets_are_an_answer_or_a_control_error(haproxy: Haproxy, says: bytes) -> None:
    async def talk_to_it() -> None:
        async with asyncio.timeout(60):
            for asking in (ask(haproxy.path, ["show stat", "show info"]), command(haproxy.path, ["set map a b"])):
                with contextlib.suppress(ControlError):
                    await asking
            assert "\n" not in await mark_of(haproxy.path)
            for process in await processes(haproxy.path):
                assert 1 < process.pid <= 1 << 22

    haproxy.says = says
    haproxy.runner.run(talk_to_it())


@given(st.text(max_size=200) | lines.map(lambda some: HEADER + "\n" + ",".join(some)) | lines.map("".join))
@example(HEADER + "\ndefault:web:80,s1,x,1e999,nan,-1,\u00b2,,,\n")
@example(HEADER + "\ndefault:web:80,s\u00b2,1\n")
@example("svname\ns1\n")
@example(HEADER + "\n" + "x" * 140_000)
@example(HEADER + "\na\0b,s1\n")
def test_any_statistics_are_metrics(text: str) -> None:
    statistics, registry = Statistics(), CollectorRegistry()
    statistics.update(text, lambda _pool: SLOTS)
    registry.register(statistics)
    assert b"nan" not in generate_latest(registry).lower()
