"""What a running proxy leaves for the commands that look: its record, its lock, the flags to start it again."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from vipwire.app.running import ProxyRecord, ProxyState, Recorder, read_record, recorded
from vipwire.config.flags.parse import build_config, explicit_flags, parse_flags

RECORD = ProxyRecord(7, 100.0, "1.2.3", "node-1", "nftables", ("--cluster-cidr=10.0.0.0/8",), {"IPv4": 5.0})


def state(folder: Path) -> ProxyState:
    return read_record(str(folder))[0]


def test_a_proxy_runs_for_as_long_as_it_holds_its_lock(tmp_path: Path) -> None:
    assert read_record(str(tmp_path)) == (ProxyState.NONE, None)
    with recorded(str(tmp_path)) as recorder:
        assert state(tmp_path) is ProxyState.NONE
        recorder.write(RECORD)
        found, record = read_record(str(tmp_path))
        assert found is ProxyState.RUNNING
        assert record is not None
        assert (record.flags, record.synced) == (RECORD.flags, RECORD.synced)
        recorder.end("SIGTERM")
    found, record = read_record(str(tmp_path))
    assert found is ProxyState.ENDED
    assert record is not None
    assert record.reason == "SIGTERM"


def test_one_that_says_no_last_word_has_died(tmp_path: Path) -> None:
    with recorded(str(tmp_path)) as recorder:
        recorder.write(RECORD)
    assert state(tmp_path) is ProxyState.DIED


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        with recorded(str(tmp_path)) as recorder:
            recorder.write(RECORD)
            os._exit(0)
    os.waitpid(child, 0)
    assert state(tmp_path) is ProxyState.DIED


def test_a_second_proxy_leaves_the_record_of_the_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with recorded(str(tmp_path)) as first, recorded(str(tmp_path)) as second:
        first.write(RECORD)
        second.write(ProxyRecord(8, 1.0, "1.2.3", "other", "ipvs"))
        record = read_record(str(tmp_path))[1]
        assert record is not None
        assert record.node == "node-1"
    assert "another proxy runs in this network namespace" in caplog.text


def test_namespaces_have_records_of_their_own(tmp_path: Path) -> None:
    with recorded(str(tmp_path), "1") as one, recorded(str(tmp_path), "2"):
        one.write(RECORD)
        assert read_record(str(tmp_path), "1")[0] is ProxyState.RUNNING
        assert read_record(str(tmp_path), "2")[0] is ProxyState.NONE
        assert state(tmp_path) is ProxyState.NONE


def test_records_of_namespaces_that_are_gone_are_removed(tmp_path: Path) -> None:
    with recorded(str(tmp_path), "1") as one:
        one.write(RECORD)
    old = time.time() - 3 * 86400
    os.utime(tmp_path / "proxy-1.json", (old, old))
    with recorded(str(tmp_path), "2"):
        assert not (tmp_path / "proxy-1.json").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b'{"format": 9}', b"\xff"])
def test_what_cannot_be_read_is_not_there(tmp_path: Path, content: bytes) -> None:
    with recorded(str(tmp_path), "1") as recorder:
        recorder.write(RECORD)
    (tmp_path / "proxy-1.json").write_bytes(content)
    assert read_record(str(tmp_path), "1") == (ProxyState.NONE, None)


def test_without_a_place_to_write_the_proxy_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with recorded(str(tmp_path / "file")) as recorder:
        recorder.write(RECORD)
        asyncio.run(recorder.run(lambda: RECORD))
        recorder.end("SIGTERM")


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
    again = build_config(parse_flags(explicit_flags(config))).config
    assert again == config


def test_what_is_asked_for_once_is_not_among_them() -> None:
    config = build_config(parse_flags(["--takeover", "--state-dir=/tmp", "--cluster-cidr=10.0.0.0/8"])).config
    assert explicit_flags(config) == ("--cluster-cidr=10.0.0.0/8",)


def test_what_a_file_says_is_among_them(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
        "mode: iptables\nclusterCIDR: 10.1.0.0/16\niptables: {masqueradeAll: true, syncPeriod: 2s}\n"
    )
    config = build_config(parse_flags([f"--config={path}"])).config
    again = build_config(parse_flags(explicit_flags(config))).config
    assert (again.cluster_cidr, again.proxy_mode) == ("10.1.0.0/16", "iptables")
    assert again.sync == config.sync


def test_relative_folders_are_where_the_proxy_saw_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = build_config(parse_flags(["--manifests=services"])).config
    assert explicit_flags(config) == (f"--manifests={tmp_path}/services",)
