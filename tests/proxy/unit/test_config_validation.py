"""Every rule that makes a configuration invalid, and that all broken ones are told."""

import pytest

from vipwire.config.configuration import Config
from vipwire.config.file import read_config
from vipwire.config.flags import build_config, parse_flags
from vipwire.config.gates import SECURITY_GATES, find_gate_errors, find_gate_notes
from vipwire.config.schema import parse_port_range
from vipwire.config.validation import validate
from vipwire.errors import ConfigError

HEADER = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
ANY_MODE = "must be nftables, iptables, ipvs, userspace, ebpf or blank (blank means nftables)"
DUAL = "must be a single CIDR or a dual-stack pair of CIDRs (such as 10.100.0.0/16,fde4:8dba:82e1::/48)"
MINIMUM = "must be greater than or equal to nftables.minSyncPeriod, which is 5s"
PATTERN = "must not be empty or contain a comma or an equals sign"
CIDR = "must be a valid CIDR such as 10.0.0.0/8 or fd00::/64"
UNCOUNTED = "must be 0 with counters.traffic: rules cannot count offloaded packets"
GE0 = "must be greater than or equal to 0"

INVALID = [
    ("mode: kernelspace", f'mode: Invalid value: "kernelspace": {ANY_MODE}'),
    ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: Invalid value: 32: must be within the range [0, 31]"),
    ("iptables: {masqueradeBit: -1}", "iptables.masqueradeBit: Invalid value: -1: must be within the range [0, 31]"),
    (
        "{mode: nftables, nftables: {masqueradeBit: 32}}",
        "nftables.masqueradeBit: Invalid value: 32: must be within the range [0, 31]",
    ),
    (
        "{mode: iptables, iptables: {syncPeriod: -1s}}",
        'iptables.syncPeriod: Invalid value: "-1s": must be greater than 0',
    ),
    (
        "{mode: iptables, iptables: {minSyncPeriod: -1s}}",
        f'iptables.minSyncPeriod: Invalid value: "-1s": {GE0}',
    ),
    (
        "{mode: nftables, nftables: {syncPeriod: 1s, minSyncPeriod: 5s}}",
        f'nftables.syncPeriod: Invalid value: "1s": {MINIMUM}',
    ),
    (
        "nftables: {offloadPacketThreshold: -1}",
        f"nftables.offloadPacketThreshold: Invalid value: -1: {GE0}",
    ),
    (
        "{mode: ebpf, nftables: {offloadPacketThreshold: 20}, counters: {traffic: true}}",
        f"nftables.offloadPacketThreshold: Invalid value: 20: {UNCOUNTED}",
    ),
    ("{mode: ipvs, ipvs: {syncPeriod: -1s}}", 'ipvs.syncPeriod: Invalid value: "-1s": must be greater than 0'),
    ("{mode: ipvs, ipvs: {tcpTimeout: -1s}}", f'ipvs.tcpTimeout: Invalid value: "-1s": {GE0}'),
    ("{mode: ipvs, ipvs: {tcpFinTimeout: -1s}}", f'ipvs.tcpFinTimeout: Invalid value: "-1s": {GE0}'),
    ("{mode: ipvs, ipvs: {udpTimeout: -1s}}", f'ipvs.udpTimeout: Invalid value: "-1s": {GE0}'),
    ("{mode: ipvs, ipvs: {excludeCIDRs: [10.0.0.0]}}", f'ipvs.excludeCIDRs[0]: Invalid value: "10.0.0.0": {CIDR}'),
    ("conntrack: {maxPerCore: -1}", f"conntrack.maxPerCore: Invalid value: -1: {GE0}"),
    ("conntrack: {min: -1}", f"conntrack.min: Invalid value: -1: {GE0}"),
    ("conntrack: {tcpEstablishedTimeout: -1s}", f'conntrack.tcpEstablishedTimeout: Invalid value: "-1s": {GE0}'),
    ("conntrack: {tcpCloseWaitTimeout: -1s}", f'conntrack.tcpCloseWaitTimeout: Invalid value: "-1s": {GE0}'),
    ("conntrack: {udpTimeout: -1s}", f'conntrack.udpTimeout: Invalid value: "-1s": {GE0}'),
    ("conntrack: {udpStreamTimeout: -1s}", f'conntrack.udpStreamTimeout: Invalid value: "-1s": {GE0}'),
    ("clientConnection: {burst: -1}", "clientConnection.burst: Invalid value: -1: must be non-negative"),
    ("oomScoreAdj: -1001", "oomScoreAdj: Invalid value: -1001: must be within the range [-1000, 1000]"),
    ("oomScoreAdj: 1001", "oomScoreAdj: Invalid value: 1001: must be within the range [-1000, 1000]"),
    ("configSyncPeriod: -1s", 'configSyncPeriod: Invalid value: "-1s": must be greater than 0'),
    ("hostnameOverride: '  '", 'hostnameOverride: Invalid value: "": must not consist of blanks only'),
    (
        "showHiddenMetricsForVersion: latest",
        'showHiddenMetricsForVersion: Invalid value: "latest": must be omitted or be <major>.<minor>',
    ),
    ("bindAddress: localhost", 'bindAddress: Invalid value: "localhost": must be an IP address'),
    (
        "healthzBindAddress: localhost",
        'healthzBindAddress: Invalid value: "localhost": must be IP:port ([IP]:port for IPv6)',
    ),
    (
        "healthzBindAddress: localhost:80",
        "healthzBindAddress: Invalid value: \"localhost:80\": 'localhost' must be a valid IP",
    ),
    (
        "metricsBindAddress: 127.0.0.1:0",
        "metricsBindAddress: Invalid value: \"127.0.0.1:0\": '0' must be a valid port, 1 to 65535",
    ),
    (
        "metricsBindAddress: 127.0.0.1:65536",
        "metricsBindAddress: Invalid value: \"127.0.0.1:65536\": '65536' must be a valid port, 1 to 65535",
    ),
    ("nodePortAddresses: [10.0.0.1]", f'nodePortAddresses[0]: Invalid value: "10.0.0.1": {CIDR}'),
    (
        "nodePortAddresses: [10.0.0.0/8, primary]",
        'nodePortAddresses[1]: Invalid value: "primary": cannot be used together with CIDRs or twice',
    ),
    (
        "detectLocalMode: Guess",
        (
            'detectLocalMode: Invalid value: "Guess": must be ClusterCIDR, NodeCIDR, BridgeInterface, '
            "InterfaceNamePrefix or blank (blank means ClusterCIDR)"
        ),
    ),
    (
        "detectLocalMode: BridgeInterface",
        'detectLocal.bridgeInterface: Invalid value: "": must not be empty with detectLocalMode BridgeInterface',
    ),
    (
        "detectLocalMode: InterfaceNamePrefix",
        (
            'detectLocal.interfaceNamePrefix: Invalid value: "": must not be empty with detectLocalMode '
            "InterfaceNamePrefix"
        ),
    ),
    ("clusterCIDR: 10.0.0.0", f'clusterCIDR: Invalid value: "10.0.0.0": {CIDR}'),
    ("clusterCIDR: '10.0.0.0/8,11.0.0.0/8'", f'clusterCIDR: Invalid value: "10.0.0.0/8,11.0.0.0/8": {DUAL}'),
    (
        "clusterCIDR: '10.0.0.0/8,fd00::/8,11.0.0.0/8'",
        f'clusterCIDR: Invalid value: "10.0.0.0/8,fd00::/8,11.0.0.0/8": {DUAL}',
    ),
    ("portRange: 9-3", 'portRange: Invalid value: "9-3": must be a port range such as 30000-32767, or empty'),
    ("udpIdleTimeout: -1s", 'udpIdleTimeout: Invalid value: "-1s": must be greater than 0'),
    ("logging: {format: xml}", 'logging.format: Invalid value: "xml": must be text or json'),
    ("logging: {flushFrequency: -1s}", 'logging.flushFrequency: Invalid value: "-1s": must not be negative'),
    ("logging: {verbosity: -1}", "logging.verbosity: Invalid value: -1: must be within the range [0, 2147483647]"),
    (
        "logging: {format: json, vmodule: [{filePattern: a, verbosity: 1}]}",
        "logging.vmodule: Invalid value: 1: is only supported with the text format",
    ),
    (
        "logging: {vmodule: [{filePattern: 'a,b', verbosity: 1}]}",
        f'logging.vmodule[0].filePattern: Invalid value: "a,b": {PATTERN}',
    ),
    (
        "logging: {vmodule: [{filePattern: a, verbosity: -1}]}",
        "logging.vmodule[0].verbosity: Invalid value: -1: must not be negative",
    ),
    (
        "featureGates: {NFTablesProxyMode: false}",
        (
            'featureGates: Invalid value: "NFTablesProxyMode=false": '
            "cannot set feature gate NFTablesProxyMode to false: it is locked to true"
        ),
    ),
]

VALID = [
    "{}",
    "{mode: ipvs, iptables: {syncPeriod: -1s}}",
    "{mode: iptables, ipvs: {syncPeriod: -1s, excludeCIDRs: [x]}, nftables: {masqueradeBit: 99}}",
    "{iptables: {masqueradeBit: 31}, nftables: {masqueradeBit: 0}}",
    "{nodePortAddresses: [primary]}",
    "{nodePortAddresses: [10.0.0.0/8, 'fd00::/8']}",
    "{clusterCIDR: '10.0.0.0/8,fd00::/8'}",
    "{detectLocalMode: NodeCIDR, clusterCIDR: nonsense}",
    "{detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: br0}}",
    "{healthzBindAddress: '[::]:10256', bindAddress: '::'}",
    "{featureGates: {NFTablesProxyMode: true, StrictIPCIDRValidation: false}}",
    "{showHiddenMetricsForVersion: '1.35', portRange: 0-0}",
]


def _config(text: str) -> Config:
    if text.startswith("{"):
        text = "\n".join(part for part in (HEADER, "x: &all " + text, "<<: *all"))
    return read_config(text if text.startswith(HEADER) else HEADER + text).config


@pytest.mark.parametrize(("text", "error"), INVALID)
def test_a_broken_rule_is_told_with_path_value_and_what_is_allowed(text: str, error: str) -> None:
    assert [str(found) for found in validate(_config(text))] == [f"KubeProxyConfiguration.{error}"]


@pytest.mark.parametrize("text", VALID)
def test_what_kube_proxy_accepts_is_accepted(text: str) -> None:
    assert validate(_config(text)) == ()


def test_all_errors_are_told_at_once() -> None:
    config = _config("mode: x\noomScoreAdj: 5000\nbindAddress: y\nclusterCIDR: z\n")
    assert [error.path for error in validate(config)] == ["mode", "bindAddress", "oomScoreAdj", "clusterCIDR"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", range(0)),
        ("0-0", range(0)),
        ("300-2000", range(300, 2001)),
        ("300+10", range(300, 311)),
        ("80", range(80, 81)),
        ("9-3", None),
        ("1-70000", None),
        ("a-b", None),
    ],
)
def test_port_ranges_are_read_with_both_ends(text: str, expected: range | None) -> None:
    assert parse_port_range(text) == expected


@pytest.mark.parametrize("gate", ["EndpointSliceProxying", "DynamicResourceAllocation", "GateOfKubernetes140"])
@pytest.mark.parametrize("value", ["true", "false"])
def test_a_gate_of_another_version_or_component_causes_a_warning(gate: str, value: str) -> None:
    given = parse_flags([f"--feature-gates={gate}={value}", "--nodeport-addresses=primary"])
    (warning,) = build_config(given).warnings
    assert warning.endswith(f": {gate}")
    assert find_gate_notes([("NFTablesProxyMode", True)]) == ()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("AllowServiceExternalIP", "AllowServiceExternalIPs"),
        ("allowserviceexternalips", "AllowServiceExternalIPs"),
        ("AllowServicesExternalIPs", "AllowServiceExternalIPs"),
        ("StrictIPCIDRValidations", "StrictIPCIDRValidation"),
        ("StrictCIDRValidation", "StrictIPCIDRValidation"),
    ],
)
def test_a_misspelt_gate_that_decides_about_trust_is_refused(written: str, meant: str) -> None:
    assert meant in SECURITY_GATES
    (error,) = find_gate_errors([(written, False)])
    assert meant in error
    with pytest.raises(ConfigError):
        build_config(parse_flags([f"--feature-gates={written}=false"]))
