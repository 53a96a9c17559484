"""A kube-proxy's configuration is read from wherever it tells it."""

import json
from pathlib import Path

import pytest

from vipwire.errors import ConfigError
from vipwire.proxy.handover.kube_proxy import configured, from_config_map, from_configz, of_process

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
    config = from_configz(json.dumps({"kubeproxy.config.k8s.io": DOCUMENT}), "configz")
    assert (config.mode, config.ipvs.scheduler, config.ipvs.strict_arp) == ("ipvs", "lc", True)
    assert config.ipvs.tcp_timeout == 7200


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kubeproxy.config.k8s.io": {"Mode": "ipvs"}}'])
def test_a_page_of_somebody_else_or_of_an_older_version_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match="configz"):
        from_configz(text, "configz")


def test_flags_count_where_there_is_no_file(tmp_path: Path) -> None:
    words = (
        "--proxy-mode",
        "ipvs",
        "--ipvs-scheduler=sh",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
        "--kubeconfig=/x",
        "-v=2",
    )
    found = of_process(process(tmp_path / "7", *words))
    assert found.where == "the command line of process 7"
    assert (found.mode, found.config.ipvs.scheduler) == ("ipvs", "sh")
    assert found.config.ipvs.exclude_cidrs == ("10.0.0.0/8",)


def test_the_file_is_read_below_the_containers_root(tmp_path: Path) -> None:
    folder = process(tmp_path / "7", "--config=/var/lib/kube-proxy/config.conf", "--hostname-override=node-1")
    file = folder / "root/var/lib/kube-proxy/config.conf"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(DOCUMENT))
    found = of_process(folder)
    assert found.where == "/var/lib/kube-proxy/config.conf of process 7"
    assert found.config.ipvs.exclude_cidrs == ("192.168.99.0/24",)


def test_a_blank_mode_is_iptables(tmp_path: Path) -> None:
    assert of_process(process(tmp_path / "7")).mode == "iptables"


def test_the_config_map_is_kubeadms() -> None:
    data = {"kubeconfig.conf": "kind: Config", "config.conf": json.dumps(DOCUMENT)}
    assert from_config_map({"data": data}, "it").mode == "ipvs"
    empties: tuple[object, ...] = ({}, {"data": None}, {"data": {"x": "y"}}, [], {"data": []})
    for empty in empties:
        with pytest.raises(ConfigError, match="it: holds no KubeProxyConfiguration"):
            from_config_map(empty, "it")


def test_no_kube_proxy_has_no_configuration() -> None:
    assert configured(None) is None
