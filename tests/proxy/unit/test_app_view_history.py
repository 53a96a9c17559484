"""What the proxy writes of its last changes, and how much of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from vipwire.config.flags import build_config, parse_flags
from vipwire.inspect.page.changes import change_document, read_changes
from vipwire.model.names import ObjectName
from vipwire.model.net import Family
from vipwire.plan.planner import PlanChange
from vipwire.proxy_daemon import view as module
from vipwire.proxy_daemon.servers import build_command_line
from vipwire.proxy_daemon.sync.engine import Outcome
from vipwire.proxy_daemon.view import Change, History
from vipwire.watched_objects.event import Deleted, Kind

LINE = cast("Any", SimpleNamespace(family=Family.IPV4))
EMPTY = cast("Any", SimpleNamespace(frontends=()))


def outcome(*names: str, first: bool = False) -> Outcome:
    made = Outcome(Family.IPV4, seconds=0.002, first=first)
    made.changes = {ObjectName("default", name): PlanChange(None, EMPTY) for name in names}
    return made


def written(path: Path, history: History) -> list[Change]:
    history.write()
    return read_changes(path)


def test_a_change_knows_how_long_it_took_from_its_event_to_the_kernel(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    history = History(path)
    history.record_event(Deleted(Kind.SERVICE, ObjectName("default", "a")), 100.0)
    history.record_event(Deleted(Kind.SERVICE, ObjectName("default", "a")), 100.5)
    history.record_sync(LINE, outcome("a"), 101.0)
    (change,) = written(path, history)
    assert (change.service, change.what, change.waited, change.took) == ("default/a", "added", 1.0, 0.002)
    history.record_all_synced()
    history.record_sync(LINE, outcome("a"), 102.0)
    assert written(path, history)[-1].waited is None
    assert change_document(change)["secondsToKernel"] == 1.0


def test_an_incident_is_a_row_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    history = History(path)
    history.record_change("repaired", "2 objects: a, b", 5.0, family="IPv4")
    history.record_change("ejected", "10.0.0.1:80 gets no new connections", 6.0, service="default/a")
    rows = [change_document(each) for each in written(path, history)]
    assert [(row["what"], row["service"], row["services"], row["family"]) for row in rows] == [
        ("repaired", None, 0, "IPv4"),
        ("ejected", "default/a", 1, ""),
    ]
    assert rows[0]["about"] == "2 objects: a, b"


def test_the_first_sync_and_a_large_one_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OF_A_SYNC", 2)
    path = tmp_path / "changes.jsonl"
    history = History(path)
    history.record_sync(LINE, outcome(*"abcdef", first=True), 1.0)
    history.record_sync(LINE, outcome(*"abcdef"), 2.0)
    assert [(each.service, each.services) for each in written(path, history)] == [
        ("", 6),
        ("default/a", 1),
        ("default/b", 1),
        ("", 4),
    ]


def test_the_file_stays_bounded_and_a_cut_line_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 10)
    path = tmp_path / "changes.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(Change(1.0, "IPv4", "added")) + b"\n" for _ in range(500)))
    history = History(path)
    for number in range(40):
        history.record_sync(LINE, outcome(f"n{number}"), float(number))
        history.write()
    assert len(path.read_bytes().splitlines()) <= 20
    assert written(path, history)[-1].service == "default/n39"
    with path.open("ab") as file:
        file.write(b'{"when": 3, "fam')
    assert written(path, history)[-1].service == "default/n39"


def test_where_nothing_can_be_written_the_proxy_goes_on(tmp_path: Path) -> None:
    history = History(tmp_path / "nowhere" / "changes.jsonl")
    history.record_sync(LINE, outcome("a"), 1.0)
    assert written(tmp_path / "nowhere" / "changes.jsonl", history) == []


def test_the_page_beside_a_proxy_has_its_flags() -> None:
    flags = ["--manifests=/m", "--cluster-cidr=10.0.0.0/8", "--nodeport-addresses=primary"]
    assert build_command_line(build_config(parse_flags(flags)).config) == ()
    config = build_config(parse_flags([*flags, "--view-bind-address=127.0.0.1", "--state-dir=/s"])).config
    command = build_command_line(config)
    assert command[2:] == (
        *("vipwire", "view", "--view-bind-address=127.0.0.1:10247", "--beside-proxy", "--state-dir=/s"),
        *("--manifests=/m", "--nodeport-addresses=primary", "--cluster-cidr=10.0.0.0/8"),
    )
