"""Log lines: one a record, in both formats, at kube-proxy's levels."""

import io
import json
import logging
import re
from typing import TextIO

import pytest

from vipwire.config.kinds import ModuleVerbosity
from vipwire.config.sections import Logging, LogOptions, LogOutput
from vipwire.logging import log
from vipwire.model.names import ObjectName


def _configured(settings: Logging, stdout: TextIO | None = None, stream: io.StringIO | None = None) -> io.StringIO:
    stream = stream or io.StringIO()
    log.configure(settings, stderr=stream, stdout=stdout)
    return stream


def _without_time(text: str) -> list[str]:
    assert all(re.match(r"ts=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z ", line) for line in text.splitlines())
    return [line.partition(" ")[2] for line in text.splitlines()]


def test_a_record_is_one_line_of_keys_and_values() -> None:
    out = _configured(Logging())
    log.info("synced", ip_family="IPv4", services=3, seconds=0.00123456789, full=True, note="")
    log.warning('two\nlines and a "quote"', name="ns/svc:http", equation="a=b")
    assert _without_time(out.getvalue()) == [
        'level=info msg=synced ip_family=IPv4 services=3 seconds=0.00123457 full=true note=""',
        'level=warning msg="two\\nlines and a \\"quote\\"" name=ns/svc:http equation="a=b"',
    ]


def test_a_record_is_one_json_object() -> None:
    out = _configured(Logging(format="json", verbosity=4))
    log.info("synced", services=3, level="mine")
    log.detail(4, "deep", name=("a", 1))
    log.error("broken")
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert isinstance(first.pop("ts"), float)
    assert first == {"level": "info", "v": 0, "msg": "synced", "services": 3}
    assert (second["v"], second["msg"], second["name"]) == (4, "deep", ["a", 1])
    assert ("v" in third, third["level"]) == (False, "error")


def test_records_are_shown_up_to_the_verbosity() -> None:
    out = _configured(Logging(verbosity=2))
    for verbosity in range(5):
        log.detail(verbosity, f"v{verbosity}")
    log.error("always")
    assert [line.split("msg=")[1] for line in _without_time(out.getvalue())] == ["v0", "v1", "v2", "always"]
    assert (log.enabled(2), log.enabled(3)) == (True, False)


def test_the_verbosity_can_be_changed_while_running() -> None:
    out = _configured(Logging())
    log.detail(3, "before")
    log.set_verbosity(3)
    log.detail(3, "after")
    log.detail(4, "never")
    assert [line.split("msg=")[1] for line in _without_time(out.getvalue())] == ["after"]


@pytest.mark.parametrize(
    ("pattern", "shown"),
    [("test_process_log", True), ("test_proc*", True), ("*/test_process_log", True), ("other", False)],
)
def test_source_files_have_verbosities_of_their_own(pattern: str, *, shown: bool) -> None:
    out = _configured(Logging(vmodule=(ModuleVerbosity(pattern, 4),)))
    log.detail(4, "deep")
    log.detail(5, "deeper")
    assert ("msg=deep" in out.getvalue(), "deeper" in out.getvalue()) == (shown, False)


def test_libraries_are_shown_from_warning_on() -> None:
    out = _configured(Logging())
    logging.getLogger("somebody").info("chatter")
    logging.getLogger("somebody").warning("trouble with %s", "x")
    assert _without_time(out.getvalue()) == ['level=warning msg="trouble with x" logger=somebody']


def test_a_traceback_stays_on_the_line() -> None:
    out = _configured(Logging())
    try:
        int("no")
    except ValueError:
        logging.getLogger("vipwire").exception("failed")
    (line,) = _without_time(out.getvalue())
    assert line.startswith('level=error msg=failed stack="Traceback (most recent call last):\\n')


def test_a_split_stream_keeps_errors_apart() -> None:
    stdout = io.StringIO()
    stderr = _configured(Logging(options=LogOptions(text=LogOutput(split_stream=True))), stdout)
    log.info("good")
    log.error("bad")
    assert ("good" in stdout.getvalue(), "bad" in stdout.getvalue()) == (True, False)
    assert ("good" in stderr.getvalue(), "bad" in stderr.getvalue()) == (False, True)


def test_configuring_again_replaces_what_was() -> None:
    first, second = _configured(Logging()), _configured(Logging())
    log.info("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_only_a_terminal_gets_colours_and_only_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured = _configured(Logging(), stream=_Terminal())
    log.error("x")
    assert "level=\x1b[31merror\x1b[0m" in coloured.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    plain = _configured(Logging(), stream=_Terminal())
    log.error("x")
    assert "\x1b" not in plain.getvalue()


def test_a_name_is_a_text_in_json_too() -> None:
    stream = _configured(Logging(format="json"))
    log.info("said", service=ObjectName("default", "web"), count=2, many=["a"])
    record = json.loads(stream.getvalue())
    assert (record["service"], record["count"], record["many"]) == ("default/web", 2, ["a"])


def _said() -> None:
    log.info("synced", ip_family="IPv4", services=3, seconds=0.00123456789, full=True, note="")
    log.warning('two\nlines and a "quote"', name=ObjectName("ns", "svc"))
    log.error("broken", error=ValueError("a b"))


@pytest.mark.parametrize("split", [False, True])
def test_a_line_is_the_same_where_somebody_else_takes_records_too(*, split: bool) -> None:
    settings = Logging(options=LogOptions(text=LogOutput(split_stream=split)))
    alone = _configured(settings, io.StringIO())
    _said()
    together, other = _configured(settings, io.StringIO()), logging.NullHandler()
    logging.getLogger().addHandler(other)
    try:
        _said()
    finally:
        logging.getLogger().removeHandler(other)
    assert _without_time(alone.getvalue()) == _without_time(together.getvalue()) != []


def test_a_line_that_cannot_be_written_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    out = _configured(Logging())
    out.close()
    log.info("synced")
    _configured(Logging())
    assert "I/O operation on closed file" in capsys.readouterr().err
