"""Whatever HAProxy, or what is at its sockets, says: an answer, or a ControlError; never anything else."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from vipwire.model.net import parse_address
from vipwire_l7.haproxy.slots import Slots
from vipwire_l7.plan.sites import Server
from vipwire_l7.run.control import ControlError, ask_haproxy, command_haproxy, list_processes, read_mark
from vipwire_l7.run.statistics import Statistics
from vipwire_l7.watch.objects import BackendEndpoint, Usability

SLOTS: Slots = (Server(BackendEndpoint(parse_address("127.0.0.1"), Usability.READY), 80), None)
HEADER = "# pxname,svname,stot,bin,bout,econ,hrsp_2xx,scur,qcur,rtime,"
WORDS = (
    *("> ", "\n> ", "+ ", "Success", "Failed!", "description: vipwire-1-2", "# programs", "#<PID>", "master"),
    *("worker", "1", "0", "-1", "2147483648", "9" * 30, "\u00b2", "\u0663", "default:web:80", "s1", "s0", "s99"),
    *(",", '"', "\n"),
)
cells = st.sampled_from(
    ("a:b:80", "a:b:80:c", "s1", "s0", "s²", "s" + "9" * 5000, "1", "²", "", '"', "\0", "BACKEND")
)
words = st.sampled_from(WORDS)
lines = st.lists(words | st.text(max_size=5), max_size=30)
talk = (
    st.binary(max_size=300)
    | lines.map(lambda some: " ".join(some).encode(errors="replace"))
    | st.builds(lambda some: "".join(some).encode(errors="replace"), lines)
)


@given(says=talk | st.lists(talk, max_size=4).map(lambda some: b"> " + b"\n> ".join(some) + b"\n> "))
@example(says="\u00b2 master 0\n# programs".encode())
@example(says=b"99999999999999999999999999 master 0\n# programs")
@example(says=b"x" * 70_000)
def test_any_bytes_at_the_sockets_are_an_answer_or_a_control_error(says: bytes) -> None:
    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async def talk_to_it(path: Path) -> None:
        async with asyncio.timeout(60), await asyncio.start_unix_server(serve, path):
            for asking in (ask_haproxy(path, ["show stat", "show info"]), command_haproxy(path, ["set map a b"])):
                with contextlib.suppress(ControlError):
                    await asking
            assert "\n" not in await read_mark(path)
            for process in await list_processes(path):
                assert 1 < process.pid <= 1 << 22

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(talk_to_it(Path(folder) / "haproxy.sock"))


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


@given(st.lists(st.lists(cells, min_size=6, max_size=6), max_size=4))
def test_metrics_are_numbers_whatever_the_cells_hold(rows: list[list[str]]) -> None:
    statistics = Statistics()
    columns = "# pxname,svname,scur,rtime,hrsp_2xx,stot"
    statistics.update("\n".join([columns, *map(",".join, rows)]), lambda _: SLOTS)
    for family in statistics.collect():
        assert all(sample.value >= 0 for sample in family.samples)
