"""What echo servers say, and processes told apart from others of the same number."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vipwire.errors import DecodeError
from vipwire_lab.echo_servers.answer import Answer, SocketAddress, build_http_response
from vipwire_lab.namespaces.processes import ProcessId, end_gracefully

ANSWER = Answer("pod-1a", "node-1", "TCP", SocketAddress("fd00::2", 4000), SocketAddress("fd00::1", 80))


def test_an_answer_is_read_as_it_was_written() -> None:
    assert Answer.decode(ANSWER.encode()) == ANSWER
    assert str(ANSWER.saw) == "[fd00::2]:4000"


@pytest.mark.parametrize(
    "line", [b"", b"HTTP/1.1 200 OK", b"[]", b'{"pod": "x"}', b'{"saw": 1, "local": 2}', b"\xff"]
)
def test_what_is_no_answer_is_refused(line: bytes) -> None:
    with pytest.raises(DecodeError):
        Answer.decode(line)


def test_the_http_response_says_how_long_it_is() -> None:
    head, body = build_http_response(ANSWER).split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert Answer.decode(body) == ANSWER


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)


def test_a_process_is_kept_in_a_file_and_ended_by_it(tmp_path: Path) -> None:
    with sleeper() as process:
        identity = ProcessId.of(process.pid)
        assert identity is not None
        identity.write(tmp_path / "x.pid")
        assert ProcessId.read(tmp_path / "x.pid") == identity
        end_gracefully([identity])
        assert process.wait() == -15
        assert ProcessId.of(process.pid) is None


def test_another_process_of_the_same_number_is_left_alone() -> None:
    with sleeper() as process:
        identity = ProcessId.of(process.pid)
        assert identity is not None
        end_gracefully([ProcessId(process.pid, identity.started - 1)])
        assert ProcessId.of(process.pid) == identity
        process.communicate(b"")
        assert process.returncode == 0


def test_ours_is_told_from_none_and_from_garbage(tmp_path: Path) -> None:
    (tmp_path / "x.pid").write_text("what?")
    assert ProcessId.read(tmp_path / "x.pid") is None
    assert ProcessId.read(tmp_path / "y.pid") is None
    assert ProcessId.of(os.getpid()) == ProcessId.of(os.getpid())
