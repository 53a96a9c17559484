"""What a process of kube-proxy's name says of its mode, by flag or by file: any bytes are a mode or none."""

import os
from pathlib import Path

import pytest

from vipwire.proxy.handover.kube_proxy import KubeProxy, find_kube_proxy


def fake_proc(folder: Path, *flags: str, config: bytes | None = None) -> Path:
    """Write a /proc with this thread and one kube-proxy, in one network namespace."""
    for name in ("thread-self", "4711"):
        (folder / name / "ns").mkdir(parents=True)
    (folder / "thread-self/ns/net").touch()
    (folder / "4711/ns/net").hardlink_to(folder / "thread-self/ns/net")
    (folder / "4711/comm").write_text("kube-proxy\n")
    (folder / "4711/cmdline").write_bytes("\0".join(("kube-proxy", *flags, "")).encode())
    (folder / "4711/root").mkdir()
    if config is not None:
        (folder / "4711/root/config.conf").write_bytes(config)
    return folder


def mode_of(proc: Path) -> str:
    found = find_kube_proxy(proc)
    assert found is not None
    assert found.pid == 4711
    return found.mode


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        (b"mode: nftables", "nftables"),
        (b"mode: ipvs\nconntrack: {min: 1}", "ipvs"),
        (b"mode: ''", "iptables"),
        (b"", "iptables"),
        (b"- mode", "iptables"),
        (b"mode: [nftables]", ""),
        (b"mode: 5", ""),
        (b"mode: {a: b}", ""),
        (b"\tmode: nftables", ""),
        (b"mode: nftables\n...\n--- x\n", ""),
        (b"a: !!bool x\nmode: nftables", ""),
        (b"a: !!timestamp x", ""),
        (b"a: !!python/object/apply:os.system [id]", ""),
        (b"&a [*a]", "iptables"),
        (b"a: *nowhere", ""),
        (b"? {}\n: x", ""),
        (b"[" * 5000, ""),
        (b"mode: \xff\xfe", ""),
        (b"mode: nftables\n#" + b"x" * 100_000, ""),
    ],
)
def test_a_file_names_the_mode_or_none(tmp_path: Path, config: bytes, mode: str) -> None:
    proc = fake_proc(tmp_path, "--config=/config.conf", config=config)
    assert mode_of(proc) == mode


def test_a_file_that_is_not_there_or_never_ends_names_none(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "--config=/config.conf")
    assert mode_of(proc) == ""
    os.mkfifo(proc / "4711/root/config.conf")
    assert mode_of(proc) == ""
    (proc / "4711/root/config.conf").unlink()
    (proc / "4711/root/config.conf").symlink_to("/dev/zero")
    assert mode_of(proc) == ""


def test_a_flag_names_the_mode(tmp_path: Path) -> None:
    assert mode_of(fake_proc(tmp_path / "a", "--proxy-mode=ipvs")) == "ipvs"
    assert mode_of(fake_proc(tmp_path / "b", "--proxy-mode=other")) == ""
    assert mode_of(fake_proc(tmp_path / "c")) == "iptables"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_another_users_process_of_that_name_is_none(tmp_path: Path) -> None:
    proc = fake_proc(tmp_path, "--proxy-mode=ipvs")
    assert find_kube_proxy(proc) == KubeProxy(4711, "ipvs")
    os.chown(proc / "4711", 65534, 65534)
    assert find_kube_proxy(proc) is None
