"""A kernel of its own for one command: what the command says and how it ends, and that nothing keeps the guest."""

import io
import sys
import threading

import pytest

from vipwire.lab import kernel
from vipwire.lab.errors import LabError

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(bool(kernel.obstacle()), reason=f"no kernel of its own can be booted: {kernel.obstacle()}"),
]


class Listening(io.BytesIO):
    """A sink that tells when something was said."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()

    def write(self, data: object) -> int:
        self.heard.set()
        return super().write(data)  # type: ignore[arg-type]


def test_a_command_is_heard_and_its_status_returned_whatever_it_leaves_behind() -> None:
    """A process that outlives the command holds its output open, and must not hold the guest."""
    out, err = io.BytesIO(), io.BytesIO()
    script = "sleep 3000 & cat /sys/class/net/lo/operstate; test -e /proc/net/ip_vs; echo bad >&2; exit 7"
    assert kernel.run(["sh", "-c", script], stdout=out, stderr=err) == 7
    assert out.getvalue() == b"unknown\n"
    assert err.getvalue() == b"bad\n"


def test_changes_vanish_with_the_guest_but_for_those_that_are_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    kept, lost = tmp_path_factory.mktemp("kept"), tmp_path_factory.mktemp("lost")
    script = (
        f"import pathlib\nfor each in {str(kept)!r}, {str(lost)!r}: pathlib.Path(each, 'file').write_text('here')"
    )
    assert kernel.run([sys.executable, "-c", script], kernel.Guest(writable=(kept,))) == 0
    assert (kept / "file").read_text() == "here"
    assert not (lost / "file").exists()


def test_a_guest_that_nobody_waits_for_is_ended() -> None:
    guest, out = kernel.Guest(), Listening()

    def give_up() -> None:
        out.heard.wait()
        guest.given_up.set()

    thread = threading.Thread(target=give_up, daemon=True)
    thread.start()
    with pytest.raises(LabError, match="was given up; its console said"):
        kernel.run(["sh", "-c", "echo here; exec sleep 3000"], guest, stdout=out, stderr=io.BytesIO())


def test_a_guest_that_says_nothing_is_ended_and_its_console_shows_what_it_does() -> None:
    guest = kernel.Guest(silence=25.0)
    with pytest.raises(LabError, match=r"(?s)was ended after 25 s without a word.*Call Trace"):
        kernel.run(["sleep", "3000"], guest, stdout=io.BytesIO(), stderr=io.BytesIO())
