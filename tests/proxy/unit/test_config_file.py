"""KubeProxyConfiguration files: read, defaulted, complained about, written."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from tests.fakes.kubeadm import CONFIG_MAP

from vipwire.config.configuration import Config, LocalMode, SyncSettings
from vipwire.config.file import build_config_document, dump_config, load_config, read_config
from vipwire.config.kinds import ModuleVerbosity
from vipwire.config.sections import IPVS
from vipwire.errors import ConfigError
from vipwire.model.net import Prefix

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

# What kube-proxy 1.36 has as its defaults, in the form of its own file; one line differs on purpose, see below.
DEFAULTS = """
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
featureGates: {}
clientConnection:
  {kubeconfig: "", acceptContentTypes: "", contentType: application/vnd.kubernetes.protobuf, qps: 5, burst: 10}
logging:
  format: text
  flushFrequency: 5s
  verbosity: 0
  vmodule: []
  options:
    json: {infoBufferSize: "0", splitStream: false}
    text: {infoBufferSize: "0", splitStream: false}
hostnameOverride: ""
bindAddress: 0.0.0.0
healthzBindAddress: 0.0.0.0:10256
metricsBindAddress: 127.0.0.1:10249
bindAddressHardFail: false
enableProfiling: false
showHiddenMetricsForVersion: ""
mode: ""
iptables: {masqueradeBit: 14, masqueradeAll: false, localhostNodePorts: true, syncPeriod: 30s, minSyncPeriod: 1s}
ipvs:
  {syncPeriod: 30s, minSyncPeriod: 0s, scheduler: "", excludeCIDRs: null, strictARP: false, tcpTimeout: 0s,
   tcpFinTimeout: 0s, udpTimeout: 0s}
nftables: {masqueradeBit: 14, masqueradeAll: false, syncPeriod: 30s, minSyncPeriod: 0s}
winkernel:
  {networkName: "", sourceVip: "", enableDSR: false, rootHnsEndpointName: "", forwardHealthCheckVip: false}
detectLocalMode: ""
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
clusterCIDR: ""
nodePortAddresses: null
oomScoreAdj: -999
conntrack:
  {maxPerCore: 32768, min: 131072, tcpEstablishedTimeout: 24h0m0s, tcpCloseWaitTimeout: 1h0m0s, tcpBeLiberal: false,
   udpTimeout: 0s, udpStreamTimeout: 0s}
configSyncPeriod: 15m0s
portRange: ""
windowsRunAsService: false
"""


def _errors(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        read_config(text, "kp.yaml")
    return str(raised.value).splitlines()


def _config(text: str) -> Config:
    return read_config(HEADER + text, "kp.yaml").config


def _same(config: Config) -> Config:
    return dataclasses.replace(config, config_file="", explicit=frozenset())


def test_the_written_defaults_are_kube_proxys_except_that_nftables_does_not_wait() -> None:
    assert build_config_document(Config()) == yaml.safe_load(DEFAULTS)


def test_a_file_with_the_type_only_is_the_defaults() -> None:
    loaded = read_config(HEADER)
    assert _same(loaded.config) == Config()
    assert loaded.warnings == ()
    assert loaded.config.explicit == frozenset()


def test_gos_zero_values_in_kubeadms_file_mean_the_defaults() -> None:
    config = read_config(CONFIG_MAP, "kp.yaml").config
    expected = dataclasses.replace(
        Config(),
        cluster_cidr="10.244.0.0/16",
        client_connection=dataclasses.replace(
            Config().client_connection, kubeconfig="/var/lib/kube-proxy/kubeconfig.conf"
        ),
    )
    assert _same(config) == expected
    assert config.explicit == {"bindAddress", "clusterCIDR", "clientConnection.kubeconfig"} | {
        f"logging.options.{name}.infoBufferSize" for name in ("json", "text")
    }


def test_zero_in_a_pointer_field_is_zero() -> None:
    config = _config(
        "iptables: {masqueradeBit: 0, localhostNodePorts: false}\noomScoreAdj: 0\n"
        "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n"
    )
    assert (config.iptables.masquerade_bit, config.iptables.localhost_node_ports, config.oom_score_adj) == (
        0,
        False,
        0,
    )
    conntrack = config.conntrack
    assert (conntrack.max_per_core, conntrack.min) == (0, 0)
    assert (conntrack.tcp_established_timeout, conntrack.tcp_close_wait_timeout) == (0.0, 0.0)


def test_every_kind_of_value_is_read() -> None:
    config = _config(
        "mode: ipvs\nfeatureGates: {StrictIPCIDRValidation: false, AllAlpha: true}\n"
        "clientConnection: {qps: 7.5}\n"
        "ipvs: {scheduler: mh, excludeCIDRs: [10.0.0.0/8], strictARP: true, syncPeriod: 1m30s, minSyncPeriod: 0.5s}\n"
        "logging: {vmodule: [{filePattern: 'kernel*', verbosity: 4}], options: {json: {infoBufferSize: 64Ki}}}\n"
    )
    assert config.proxy_mode == "ipvs"
    assert config.feature_gates == (("AllAlpha", True), ("StrictIPCIDRValidation", False))
    assert config.client_connection.qps == 7.5
    assert config.ipvs == IPVS("mh", 90.0, 0.5, ("10.0.0.0/8",), strict_arp=True)
    assert config.logging.vmodule == (ModuleVerbosity("kernel*", 4),)
    assert config.logging.options.json.info_buffer_size == "64Ki"


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_is_read_too(indent: str | int | None) -> None:
    text = json.dumps(build_config_document(dataclasses.replace(Config(), mode="nftables")), indent=indent)
    assert read_config(text).config.mode == "nftables"


def test_unknown_fields_are_ignored_with_a_warning_that_names_line_and_field() -> None:
    loaded = read_config(HEADER + "iptables: {syncperiod: 3s}\nfoo: 1\n", "kp.yaml")
    assert loaded.warnings == (
        "kp.yaml:3: iptables.syncperiod: unknown field, ignored (did you mean syncPeriod?)",
        "kp.yaml:4: foo: unknown field, ignored",
    )
    assert loaded.config.iptables.sync_period == 30.0


def test_of_a_field_that_is_given_twice_the_last_one_counts_with_one_warning() -> None:
    loaded = read_config(HEADER + "mode: ipvs\nmode: iptables\n", "kp.yaml")
    assert loaded.config.mode == "iptables"
    assert loaded.warnings == ("kp.yaml:4: mode: given twice, the last one counts",)


def test_the_userspace_field_of_old_files_is_read_and_only_written_when_it_was_set() -> None:
    config = _config("udpIdleTimeout: 1s\n")
    assert config.udp_idle_timeout == 1.0
    assert build_config_document(config)["udpIdleTimeout"] == "1s"
    assert "udpIdleTimeout" not in build_config_document(Config())


def test_yaml_anchors_and_merges_work() -> None:
    config = _config("iptables: &common {masqueradeBit: 7}\nnftables: {<<: *common, syncPeriod: 5s}\n")
    assert (config.nftables.masquerade_bit, config.nftables.sync_period) == (7, 5.0)


def test_all_wrong_types_are_reported_with_line_field_and_what_is_allowed() -> None:
    assert _errors(
        HEADER + "mode: 3\niptables: {masqueradeBit: x, syncPeriod: 30}\nnodePortAddresses: a\nconntrack: [1]\n"
        "featureGates: {A: 3}\nlogging: {vmodule: [1], options: {json: {infoBufferSize: lots}}}\n"
        "oomScoreAdj: 99999999999\nclientConnection: {qps: fast}\nconfigSyncPeriod: 1 day\n"
        "bindAddressHardFail: 'no'\n"
    ) == [
        "kp.yaml:3: mode: must be a string, not 3: write it in quotes",
        "kp.yaml:4: iptables.masqueradeBit: must be a whole number, not 'x'",
        "kp.yaml:4: iptables.syncPeriod: must be a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0, not '30'",
        "kp.yaml:5: nodePortAddresses: must be a list of strings, not 'a'",
        "kp.yaml:6: conntrack: must be a mapping, not a list or a mapping",
        "kp.yaml:7: featureGates.A: must be true or false, not '3'",
        "kp.yaml:8: logging.vmodule[0]: must be a mapping, not '1'",
        "kp.yaml:8: logging.options.json.infoBufferSize: must be a quantity such as 0, 512, 64Ki or 1M, not 'lots'",
        "kp.yaml:9: oomScoreAdj: 99999999999 exceeds 32 bits",
        "kp.yaml:10: clientConnection.qps: must be a number, not 'fast'",
        "kp.yaml:11: configSyncPeriod: '1 day' is not a duration such as 30s, 1m30s, 500ms, 24h0m0s or 0",
        "kp.yaml:12: bindAddressHardFail: must be true or false, not 'no'",
    ]


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        (
            "mode: ipvs\n",
            [
                "kp.yaml: apiVersion: is missing, must be kubeproxy.config.k8s.io/v1alpha1",
                "kp.yaml: kind: is missing, must be KubeProxyConfiguration",
            ],
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n",
            [
                (
                    "kp.yaml: apiVersion: 'kubeproxy.config.k8s.io/v1alpha2' is not supported, "
                    "must be kubeproxy.config.k8s.io/v1alpha1"
                )
            ],
        ),
        (
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Service\n",
            ["kp.yaml: kind: 'Service' is not supported, must be KubeProxyConfiguration"],
        ),
        (
            "",
            ["kp.yaml: must be one KubeProxyConfiguration object with apiVersion: kubeproxy.config.k8s.io/v1alpha1"],
        ),
    ],
)
def test_another_type_of_object_is_refused(text: str, errors: list[str]) -> None:
    assert _errors(text) == errors


@pytest.mark.parametrize("text", ["a: [", "a: b: c", "%", "{", "\x00", "--- 1\n--- 2\n", "&a *a"])
def test_what_is_neither_yaml_nor_json_is_one_error_that_names_the_file(text: str) -> None:
    errors = _errors(text)
    assert len(errors) == 1
    assert errors[0].startswith("kp.yaml:")


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot read the configuration file: No such file"):
        load_config(str(tmp_path / "gone.yaml"))


def test_a_file_that_is_not_text_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "kp.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"kp\.yaml: cannot read the configuration file: not UTF-8"):
        load_config(str(path))


def test_a_file_is_read_from_disk_and_remembered(tmp_path: Path) -> None:
    path = tmp_path / "kp.yaml"
    path.write_text(dump_config(Config()), encoding="utf-8")
    assert load_config(str(path)).config.config_file == str(path)


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", SyncSettings(30.0, 0.0, 14, masquerade_all=False)),
        ("mode: nftables\nnftables: {minSyncPeriod: 2s}\n", SyncSettings(30.0, 2.0, 14, masquerade_all=False)),
        ("mode: nftables\niptables: {masqueradeAll: true}\n", SyncSettings(30.0, 0.0, 14, masquerade_all=False)),
        ("mode: iptables\n", SyncSettings(30.0, 1.0, 14, masquerade_all=False)),
        ("mode: iptables\niptables: {syncPeriod: 5s}\n", SyncSettings(5.0, 1.0, 14, masquerade_all=False)),
        ("mode: userspace\niptables: {masqueradeBit: 3}\n", SyncSettings(30.0, 1.0, 3, masquerade_all=False)),
        (
            "mode: ipvs\nipvs: {syncPeriod: 9s}\niptables: {masqueradeAll: true, syncPeriod: 5s}\n",
            SyncSettings(9.0, 0.0, 14, masquerade_all=True),
        ),
        (
            "iptables: {masqueradeAll: true, masqueradeBit: 3, minSyncPeriod: 4s}\nnftables: {masqueradeBit: 5}\n",
            SyncSettings(30.0, 4.0, 5, masquerade_all=True),
        ),
    ],
)
def test_the_selected_modes_section_counts(text: str, settings: SyncSettings) -> None:
    assert _config(text).sync == settings


def test_blank_fields_mean_what_kube_proxy_means_by_them_in_the_mode() -> None:
    config = _config("clusterCIDR: 10.0.0.0/8, fd00::/48\n")
    assert config.proxy_mode == "nftables"
    assert config.local_mode is LocalMode.CLUSTER_CIDR
    assert config.cluster_prefixes == (Prefix.parse("10.0.0.0/8"), Prefix.parse("fd00::/48"))
    assert config.allowed_node_port_addresses == ("primary",)
    assert _config("mode: iptables\n").allowed_node_port_addresses == ()
    assert _config("detectLocalMode: NodeCIDR\n").local_mode is LocalMode.NODE_CIDR


def test_a_feature_gates_default_its_group_and_its_own_value_add_up() -> None:
    gates = _config("featureGates: {AllBeta: false, ComponentFlagz: true}\n").gates
    assert (gates["StrictIPCIDRValidation"], gates["ComponentFlagz"], gates["NFTablesProxyMode"]) == (
        False,
        True,
        True,
    )
