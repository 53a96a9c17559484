"""What a running proxy leaves for the commands that look: its record, and the flags to start it again."""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vipwire.config.flags import build_config, list_explicit_flags, parse_flags
from vipwire.file_io.files import build_state_path
from vipwire.process_lifecycle.single_instance import Holder
from vipwire.proxy_daemon.start import record
from vipwire.proxy_daemon.start.record import ProxyRecord, ProxyState, Recorder, open_record, read_record

RECORD = ProxyRecord(7, 100.0, "1.2.3", "node-1", "nftables", ("--cluster-cidr=10.0.0.0/8",), {"IPv4": 5.0})


@pytest.fixture
def claim(monkeypatch: pytest.MonkeyPatch) -> list[Holder]:
    """Return the holder of the claim, if any: whoever the test puts there."""
    holders: list[Holder] = []
    monkeypatch.setattr(record, "find_running_proxy", lambda: next(iter(holders), None))
    return holders


def state(folder: Path, namespace: str = "") -> ProxyState:
    return read_record(str(folder), namespace)[0]


def test_a_proxy_runs_for_as_long_as_it_holds_the_claim(tmp_path: Path, claim: list[Holder]) -> None:
    assert read_record(str(tmp_path)) == (ProxyState.NONE, None)
    claim.append(Holder(7, os.getuid()))
    recorder = open_record(str(tmp_path))
    assert state(tmp_path) is ProxyState.NONE
    recorder.write(RECORD)
    found, written = read_record(str(tmp_path))
    assert found is ProxyState.RUNNING
    assert written is not None
    assert (written.flags, written.synced) == (RECORD.flags, RECORD.synced)
    recorder.end("SIGTERM")
    claim.clear()
    found, written = read_record(str(tmp_path))
    assert found is ProxyState.ENDED
    assert written is not None
    assert written.reason == "SIGTERM"


@pytest.mark.usefixtures("claim")
def test_one_that_says_no_last_word_has_died(tmp_path: Path) -> None:
    open_record(str(tmp_path)).write(RECORD)
    assert state(tmp_path) is ProxyState.DIED


@pytest.mark.parametrize(
    ("holder", "expected"),
    [
        (Holder(8, os.getuid(), {"pid": "8"}), ProxyState.DIED),  # a proxy with another state directory
        (Holder(0, os.getuid(), {"pid": "7"}), ProxyState.RUNNING),  # in a pid namespace that we do not see
        (Holder(41, os.getuid(), {"pid": "7"}), ProxyState.RUNNING),  # in one below ours
        (Holder(7, os.getuid()), ProxyState.RUNNING),  # it replaces itself and does not answer
        (Holder(7, os.getuid() + 1, {"pid": "7"}), ProxyState.DIED),  # a stranger under its name
    ],
)
def test_only_the_holder_that_wrote_the_record_is_its_proxy(
    tmp_path: Path, claim: list[Holder], holder: Holder, expected: ProxyState
) -> None:
    open_record(str(tmp_path)).write(RECORD)
    claim.append(holder)
    assert state(tmp_path) is expected


def test_the_record_of_an_early_version_is_read_and_its_lock_removed(tmp_path: Path, claim: list[Holder]) -> None:
    (tmp_path / "proxy-1.json").write_text(
        '{"pid":7,"started":100.0,"version":"0.1.0","node":"node-1","mode":"nftables","flags":[],"synced":{"IPv4":5.0},'
        '"failing":{},"problems":[],"seen":105.0,"ended":null,"reason":"","format":1}'
    )
    (tmp_path / "proxy-1.lock").touch()
    claim.append(Holder(7, os.getuid(), {"pid": "7"}))
    assert state(tmp_path, "1") is ProxyState.RUNNING
    open_record(str(tmp_path), "1")
    assert [path.name for path in tmp_path.iterdir()] == ["proxy-1.json"]


def test_namespaces_have_records_of_their_own(tmp_path: Path, claim: list[Holder]) -> None:
    claim.append(Holder(7, os.getuid()))
    open_record(str(tmp_path), "1").write(RECORD)
    open_record(str(tmp_path), "2")
    assert state(tmp_path, "1") is ProxyState.RUNNING
    assert state(tmp_path, "2") is ProxyState.NONE
    assert state(tmp_path) is ProxyState.NONE


def test_records_of_namespaces_that_are_gone_are_removed(tmp_path: Path) -> None:
    open_record(str(tmp_path), "1").write(RECORD)
    old = time.time() - 3 * 86400
    os.utime(tmp_path / "proxy-1.json", (old, old))
    open_record(str(tmp_path), "2")
    assert not (tmp_path / "proxy-1.json").exists()


def of_today(folder: Path, namespace: str, minutes: float, *more: str) -> None:
    """Leave a record, and further files, of a proxy whose last sign of life is so old."""
    for name in (f"proxy-{namespace}.json", *more):
        (folder / name).write_text("{}")
        sign = time.time() - 60 * minutes
        os.utime(folder / name, (sign, sign))


def test_only_the_last_of_many_namespaces_without_a_proxy_keep_their_files(tmp_path: Path) -> None:
    for number in range(40):
        of_today(tmp_path, f"{number}", 10 + number, f"changes-{number}.jsonl", f"announced-{number}.json")
    (tmp_path / "drained-node-1.json").write_text("{}")
    open_record(str(tmp_path), "own")
    kept = {path.name for path in tmp_path.iterdir()} - {"drained-node-1.json"}
    assert kept == {
        name for n in range(16) for name in (f"proxy-{n}.json", f"changes-{n}.jsonl", f"announced-{n}.json")
    }
    assert (tmp_path / "drained-node-1.json").exists()


def test_no_record_of_a_running_proxy_is_removed(tmp_path: Path) -> None:
    for number in range(40):
        of_today(tmp_path, f"{number}", 0.5)
    of_today(tmp_path, "own", 9999, "changes-own.jsonl")
    open_record(str(tmp_path), "own")
    assert len(list(tmp_path.iterdir())) == 42


def test_what_an_earlier_boot_has_left_is_removed(tmp_path: Path) -> None:
    own = build_state_path(str(tmp_path), "proxy", "json").stem.removeprefix("proxy-")
    boot = own.partition("-")[0]
    other = f"{int(boot, 16) ^ 1:08x}-7"
    of_today(tmp_path, other, 0.5, f"announced-{other}.json", f"proxy-{other}.new")
    of_today(tmp_path, f"{boot}-999999", 0.5)
    open_record(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [f"proxy-{boot}-999999.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b'{"format": 9}', b"\xff"])
def test_what_cannot_be_read_is_not_there(tmp_path: Path, content: bytes) -> None:
    open_record(str(tmp_path), "1").write(RECORD)
    (tmp_path / "proxy-1.json").write_bytes(content)
    assert read_record(str(tmp_path), "1") == (ProxyState.NONE, None)


def test_without_a_place_to_write_the_proxy_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    recorder = open_record(str(tmp_path / "file"))
    recorder.write(RECORD)
    asyncio.run(recorder.run(lambda: RECORD))
    recorder.end("SIGTERM")


@pytest.mark.attack
@pytest.mark.parametrize("plant", [Path.symlink_to, lambda path, _: os.mkfifo(path)], ids=["link", "pipe"])
@pytest.mark.usefixtures("claim")
def test_no_link_and_no_pipe_where_it_is_written_first_takes_it(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    plant(build_state_path(str(tmp_path), "proxy", "json.new"), elsewhere)
    open_record(str(tmp_path)).write(RECORD)
    assert elsewhere.read_text() == ""
    assert read_record(str(tmp_path))[1] is not None


def test_it_is_written_when_it_says_something_new(tmp_path: Path) -> None:
    path = tmp_path / "proxy-1.json"
    recorder = Recorder(path)
    recorder.write(RECORD)
    path.unlink()
    recorder.write(RECORD)
    assert not path.exists()
    recorder.write(ProxyRecord(7, 100.0, "1.2.3", "node-1", "nftables", (), {"IPv4": 6.0}))
    assert path.exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--cluster-cidr=10.244.0.0/16,fd00::/48", "--masquerade-all", "--hostname-override=n"],
        ["--nodeport-addresses=primary", "--iptables-sync-period=1m30s", "--proxy-mode=iptables", "--v=3"],
        ["--feature-gates=AllAlpha=true", "--conntrack-min=5", "--healthz-bind-address=", "--count-traffic"],
        ["--manifests=/etc/a", "--manifests=/etc/b", "--vmodule=x=3", "--masquerade-all=false"],
    ],
)
def test_the_flags_of_a_configuration_give_it_again(words: list[str]) -> None:
    config = build_config(parse_flags(words)).config
    again = build_config(parse_flags(list_explicit_flags(config))).config
    assert again == config


def test_what_is_asked_for_once_is_not_among_them() -> None:
    config = build_config(parse_flags(["--takeover", "--state-dir=/tmp", "--cluster-cidr=10.0.0.0/8"])).config
    assert list_explicit_flags(config) == ("--cluster-cidr=10.0.0.0/8",)


def test_what_a_file_says_is_among_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "mode: iptables\nclusterCIDR: 10.1.0.0/16\niptables: {masqueradeAll: true, syncPeriod: 2s}\n"
    )
    config = build_config(parse_flags([f"--config={path}"])).config
    again = build_config(parse_flags(list_explicit_flags(config))).config
    assert (again.cluster_cidr, again.proxy_mode) == ("10.1.0.0/16", "iptables")
    assert again.sync == config.sync


def test_relative_folders_are_where_the_proxy_saw_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = build_config(parse_flags(["--manifests=services"])).config
    assert list_explicit_flags(config) == (f"--manifests={tmp_path}/services",)
