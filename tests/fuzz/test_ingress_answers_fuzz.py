"""Whatever HAProxy answers on its sockets: processes, rows and refusals of it, or a ControlError."""

import asyncio
import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from vipwire.model.net import parse_address
from vipwire_l7.ingress.haproxy.slots import Slots
from vipwire_l7.ingress.plan.sites import Server
from vipwire_l7.ingress.run.control import ControlError, command, mark_of, processes
from vipwire_l7.ingress.run.statistics import Statistics, label_rows
from vipwire_l7.ingress.watch.objects import BackendEndpoint, Usability

_WORDS = st.sampled_from(
    (
        "#<PID>",
        "1",
        "²",
        "master",
        "worker",
        "0",
        "9" * 30,
        "[was:",
        "# programs",
        "\n",
        "> ",
        "\n> ",
        "description: ",
        "Failed!",
    )
)
_ANSWERS = st.one_of(
    st.binary(max_size=200), st.lists(_WORDS, max_size=12).map(lambda words: " ".join(words).encode())
)
_HEADS = st.lists(st.sampled_from(("pxname", "svname", "status", "hrsp_2xx", "x")), max_size=5).map(",".join)
_CELLS = st.sampled_from(
    ("a:b:80", "a:b:80:c", "s1", "s0", "s²", "s" + "9" * 5000, "1", "²", "", '"', "\0", "BACKEND")
)
_ROWS = st.lists(st.lists(_CELLS, max_size=7).map(",".join), max_size=4).map("\n".join)


async def _asked(answer: bytes) -> None:
    """Serve one answer to whoever asks, and let all questions be asked."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"\n> " + answer)
        writer.close()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "socket"
        async with await asyncio.start_unix_server(serve, str(path)):
            assert isinstance(await mark_of(path), str)
            assert all(each.pid >= 0 for each in await processes(path))
            with contextlib.suppress(ControlError):
                await command(path, ["show info", "set server a/b state ready"])


@given(_ANSWERS)
def test_any_answer_is_read_or_a_control_error(answer: bytes) -> None:
    asyncio.run(_asked(answer))


@given(st.builds("# {}\n{}".format, _HEADS, _ROWS) | st.text(max_size=100))
def test_any_statistics_are_rows_or_nothing(text: str) -> None:
    def held(_: str) -> Slots:
        return (None, None)

    assert list(label_rows(text, held)) == []


_COLUMNS = ("pxname", "svname", "scur", "rtime", "hrsp_2xx", "stot")


@given(st.lists(st.lists(_CELLS, min_size=6, max_size=6), max_size=4))
def test_metrics_are_numbers_whatever_the_cells_hold(rows: list[list[str]]) -> None:
    slots: Slots = (Server(BackendEndpoint(parse_address("10.0.0.1"), Usability.READY, "pod"), 8080),)
    statistics = Statistics()
    statistics.update("# " + "\n".join([",".join(_COLUMNS), *map(",".join, rows)]), lambda _: slots)
    for family in statistics.collect():
        assert all(sample.value >= 0 for sample in family.samples)
