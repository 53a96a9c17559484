"""What a process of kube-proxy's name says of its mode, by flag or by file: any bytes are a mode or none."""

import json
import os
from pathlib import Path

import pytest

from vipwire.errors import ConfigError
from vipwire.proxy_daemon.handover.configured import (
    find_configuration,
    parse_config_map,
    parse_configz,
    read_process_configuration,
)
from vipwire.proxy_daemon.handover.kube_proxy import KubeProxy, find_kube_proxy


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
        (b"&a [*a]", ""),
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


DOCUMENT = {
    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
    "kind": "KubeProxyConfiguration",
    "mode": "ipvs",
    "ipvs": {"scheduler": "lc", "excludeCIDRs": ["192.168.99.0/24"], "strictARP": True, "tcpTimeout": "2h0m0s"},
}


def process(folder: Path, *words: str) -> Path:
    folder.mkdir()
    (folder / "cmdline").write_text("\0".join(("/usr/local/bin/kube-proxy", *words)) + "\0")
    return folder


def test_configz_is_what_it_runs_with() -> None:
    config = parse_configz(json.dumps({"kubeproxy.config.k8s.io": DOCUMENT}), "configz")
    assert (config.mode, config.ipvs.scheduler, config.ipvs.strict_arp) == ("ipvs", "lc", True)
    assert config.ipvs.tcp_timeout == 7200


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kubeproxy.config.k8s.io": {"Mode": "ipvs"}}'])
def test_a_page_of_somebody_else_or_of_an_older_version_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="configz"):
        parse_configz(text, "configz")


def test_flags_count_where_there_is_no_file(tmp_path: Path) -> None:
    words = (
        "--proxy-mode",
        "ipvs",
        "--ipvs-scheduler=sh",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
        "--kubeconfig=/x",
        "-v=2",
    )
    found = read_process_configuration(process(tmp_path / "7", *words))
    assert found.where == "the command line of process 7"
    assert (found.mode, found.config.ipvs.scheduler) == ("ipvs", "sh")
    assert found.config.ipvs.exclude_cidrs == ("10.0.0.0/8",)


def test_the_file_is_read_below_the_containers_root(tmp_path: Path) -> None:
    folder = process(tmp_path / "7", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=node-1")
    file = folder / "root/var/lib/kube-proxy/config.conf"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(DOCUMENT))
    found = read_process_configuration(folder)
    assert found.where == "/var/lib/kube-proxy/config.conf of process 7"
    assert found.config.ipvs.exclude_cidrs == ("192.168.99.0/24",)


def test_a_blank_mode_is_iptables(tmp_path: Path) -> None:
    assert read_process_configuration(process(tmp_path / "7")).mode == "iptables"


def test_the_config_map_is_kubeadms() -> None:
    data = {"kubeconfig.conf": "kind: Config", "config.conf": json.dumps(DOCUMENT)}
    assert parse_config_map({"data": data}, "it").mode == "ipvs"
    empties: tuple[object, ...] = ({}, {"data": None}, {"data": {"x": "y"}}, [], {"data": []})
    for empty in empties:
        with pytest.raises(ConfigError, match="it: contains no KubeProxyConfiguration"):
            parse_config_map(empty, "it")


def test_no_kube_proxy_has_no_configuration() -> None:
    assert find_configuration(None) is None
