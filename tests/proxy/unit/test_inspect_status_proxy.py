"""`status` says whether a proxy runs, and the commands that look take its flags where nobody gives them."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.proxy.unit.inspected import example, make_config

from vipwire.cli.main import main
from vipwire.config.flags import list_explicit_flags
from vipwire.inspect.status.tables import describe_proxy
from vipwire.process_lifecycle.single_instance import Holder
from vipwire.proxy_daemon.start import record as app_record
from vipwire.proxy_daemon.start.record import ProxyRecord, Recorder, open_record


@pytest.fixture
def record(tmp_path: Path) -> ProxyRecord:
    (tmp_path / "objects").mkdir()
    config = make_config(tmp_path / "objects", example())
    flags = list_explicit_flags(config)
    return ProxyRecord(7, 1_000_000.0, "1.2.3", "node-1", "nftables", flags, {"IPv4": 1_000_060.0, "IPv6": None})


@pytest.fixture
def recorder(tmp_path: Path, record: ProxyRecord, monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Return the recorder of a proxy that runs, as far as its claim says."""
    monkeypatch.setattr(app_record, "find_running_proxy", lambda: Holder(record.pid, os.getuid()))
    recorder = open_record(str(tmp_path))
    recorder.write(record)
    return recorder


def look(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, f"--state-dir={folder}"])


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(look(folder, *arguments, "-o", "json").stdout)
    return made


def test_an_ended_proxy_is_told_and_its_flags_still_count(
    tmp_path: Path, recorder: Recorder, record: ProxyRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder.write(replace(record, ended=1_000_100.0, reason="SIGTERM"))
    monkeypatch.setattr(app_record, "find_running_proxy", lambda: None)
    assert "no proxy updates the kernel" in look(tmp_path, "status").stdout
    assert document(tmp_path, "plan")["node"] == "node-1"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (
            {"state": "running"},
            "proxy: runs since T0 (pid 7, vipwire 1.2.3); IPv4 synced 40 s ago; IPv6 not yet synced",
        ),
        (
            {"state": "ended", "ended": "1970-01-12T13:46:40+00:00", "reason": "SIGTERM"},
            "proxy: ended (SIGTERM) 5 min ago; no proxy updates the kernel",
        ),
        (
            {"state": "died", "seen": "1970-01-12T13:46:40+00:00"},
            "proxy: was killed or has crashed, last seen 5 min ago; no proxy updates the kernel",
        ),
        (
            {"state": "running", "otherFlags": ["--a=b"], "failing": {"nodes": "down"}, "lastSync": {}},
            (
                "proxy: runs since T0 (pid 7, vipwire 1.2.3)\nproxy: nodes: down\nproxy: runs with --a=b; this "
                "command runs without"
            ),
        ),
    ],
)
def test_it_is_said_in_a_line(document: dict[str, Any], said: str) -> None:
    synced = {"IPv4": "1970-01-12T13:51:00+00:00", "IPv6": None}
    every = {"pid": 7, "version": "1.2.3", "started": "T0", "ended": None, "reason": "", "lastSync": synced}
    made = {**every, "otherFlags": [], "failing": {}, **document}
    assert describe_proxy(made, 1_000_300.0).plain == said
