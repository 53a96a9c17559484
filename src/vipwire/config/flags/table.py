"""Every flag of `vipwire proxy`, once: name, kind, meaning, and the fields of the configuration that it sets.

The parser, the merge into the configuration, `--help`, `/flagz` and the documentation are all made from this table,
and defaults are read from `Config`, so that none of them can say something else than the others. What each flag means
stands in `flags_help`.

The names are kube-proxy's, those of 1.36 and those of every version before it. A flag whose meaning is gone is
accepted with a warning: an old command line keeps working and says what in it does nothing.
"""

import enum
from typing import Final, TypedDict, Unpack

from vipwire.config.flags.meanings import HELP
from vipwire.config.schema import ValueKind
from vipwire.model.value import Value


class Group(enum.Enum):
    """The sections of `--help`, in order; the value is the heading."""

    SOURCE = "Where Services come from"
    FILE = "Configuration file"
    MODE = "How Services are carried"
    IPVS = "ipvs mode"
    USERSPACE = "userspace mode"
    EBPF = "ebpf mode"
    TRAFFIC = "Addresses and local traffic"
    CONNTRACK = "Connection tracking"
    SERVERS = "Health, metrics and debugging"
    PROCESS = "This process"
    LOGGING = "Logging"
    OLD = "Accepted so that old command lines keep working"


class Flag(Value, frozen=True):
    """One flag.

    `paths` are the fields it sets, by their names in the file (or in `Config` for what no file says); none means that
    it is handled by itself or does nothing. `warning` is said whenever the flag is used. `with_config` flags count
    beside a `--config` file, all others are ignored then, as in kube-proxy. `repeats` flags take one value each time.
    """

    name: str
    kind: ValueKind
    group: Group
    paths: tuple[str, ...] = ()
    default: str = ""
    warning: str = ""
    with_config: bool = False
    repeats: bool = False
    short: str = ""

    @property
    def help(self) -> str:
        """The meaning of the flag, in one paragraph."""
        return HELP.get(self.name) or f"{self.warning[:1].upper()}{self.warning[1:]}."


_S, _B, _I, _D = ValueKind.STRING, ValueKind.BOOL, ValueKind.INT, ValueKind.DURATION
_F, _L, _Q = ValueKind.FLOAT, ValueKind.STRINGS, ValueKind.QUANTITY
_WINDOWS: Final = "only has a meaning on Windows"
_KLOG: Final = "log files and streams are the container runtime's business since Kubernetes 1.26"


class _Row(TypedDict, total=False):
    default: str
    warning: str
    with_config: bool
    repeats: bool
    short: str


def _group(group: Group, *rows: tuple[str, ValueKind, tuple[str, ...], _Row]) -> tuple[Flag, ...]:
    return tuple(Flag(name, kind, group, paths, **row) for name, kind, paths, row in rows)


def _flag(
    name: str, kind: ValueKind, *paths: str, **row: Unpack[_Row]
) -> tuple[str, ValueKind, tuple[str, ...], _Row]:
    return name, kind, paths, row


def _old(name: str, kind: ValueKind, why: str) -> Flag:
    return Flag(name, kind, Group.OLD, warning=f"has no effect: {why}", with_config=True)


_SOURCE = _group(
    Group.SOURCE,
    _flag("kubeconfig", _S, "clientConnection.kubeconfig"),
    _flag("master", _S, "master", with_config=True),
    _flag("manifests", _L, "manifests", with_config=True, repeats=True),
    _flag("hostname-override", _S, "hostnameOverride", with_config=True),
    _flag("config-sync-period", _D, "configSyncPeriod"),
    _flag("kube-api-content-type", _S, "clientConnection.contentType"),
    _flag("kube-api-qps", _F, "clientConnection.qps"),
    _flag("kube-api-burst", _I, "clientConnection.burst"),
)
_FILE = _group(
    Group.FILE,
    _flag("config", _S, "config_file", with_config=True),
    _flag("write-config-to", _S, "write_config_to", with_config=True),
    _flag("feature-gates", ValueKind.GATES, "featureGates"),
)
_MODE = _group(
    Group.MODE,
    _flag("proxy-mode", _S, "mode"),
    _flag("proxy-mode-fallback", _B, "proxy_mode_fallback", with_config=True),
    _flag("iptables-sync-period", _D, "iptables.syncPeriod", "nftables.syncPeriod"),
    _flag("iptables-min-sync-period", _D, "iptables.minSyncPeriod", "nftables.minSyncPeriod"),
    _flag("iptables-masquerade-bit", _I, "iptables.masqueradeBit", "nftables.masqueradeBit"),
    _flag("masquerade-all", _B, "iptables.masqueradeAll", "nftables.masqueradeAll"),
    _flag("iptables-localhost-nodeports", _B, "iptables.localhostNodePorts"),
    _flag("offload-packet-threshold", _I, "nftables.offloadPacketThreshold"),
)
_IPVS = _group(
    Group.IPVS,
    _flag("ipvs-scheduler", _S, "ipvs.scheduler"),
    _flag("ipvs-sync-period", _D, "ipvs.syncPeriod"),
    _flag("ipvs-min-sync-period", _D, "ipvs.minSyncPeriod"),
    _flag("ipvs-exclude-cidrs", _L, "ipvs.excludeCIDRs"),
    _flag("ipvs-strict-arp", _B, "ipvs.strictARP"),
    _flag("ipvs-tcp-timeout", _D, "ipvs.tcpTimeout"),
    _flag("ipvs-tcpfin-timeout", _D, "ipvs.tcpFinTimeout"),
    _flag("ipvs-udp-timeout", _D, "ipvs.udpTimeout"),
)
_USERSPACE = _group(
    Group.USERSPACE,
    _flag("proxy-port-range", _S, "portRange"),
    _flag("udp-timeout", _D, "udpIdleTimeout"),
    _flag("userspace-bind", _S, "userspaceBind"),
)
_EBPF = _group(
    Group.EBPF,
    _flag("ebpf-cgroup", _S, "ebpf.cgroup"),
    _flag("ebpf-clients", _S, "ebpf.clients"),
    _flag("ebpf-connected-udp", _B, "ebpf.connectedUDP"),
    _flag("ebpf-affinity", _B, "ebpf.affinity"),
)
_TRAFFIC = _group(
    Group.TRAFFIC,
    _flag("bind-address", _S, "bindAddress"),
    _flag("nodeport-addresses", _L, "nodePortAddresses"),
    _flag("detect-local-mode", _S, "detectLocalMode"),
    _flag("cluster-cidr", _S, "clusterCIDR"),
    _flag("pod-bridge-interface", _S, "detectLocal.bridgeInterface"),
    _flag("pod-interface-name-prefix", _S, "detectLocal.interfaceNamePrefix"),
)
_CONNTRACK = _group(
    Group.CONNTRACK,
    _flag("conntrack-max-per-core", _I, "conntrack.maxPerCore"),
    _flag("conntrack-min", _I, "conntrack.min"),
    _flag("conntrack-tcp-timeout-established", _D, "conntrack.tcpEstablishedTimeout"),
    _flag("conntrack-tcp-timeout-close-wait", _D, "conntrack.tcpCloseWaitTimeout"),
    _flag("conntrack-tcp-be-liberal", _B, "conntrack.tcpBeLiberal"),
    _flag("conntrack-udp-timeout", _D, "conntrack.udpTimeout"),
    _flag("conntrack-udp-timeout-stream", _D, "conntrack.udpStreamTimeout"),
)
_SERVERS = _group(
    Group.SERVERS,
    _flag("healthz-bind-address", _S, "healthzBindAddress"),
    _flag("metrics-bind-address", _S, "metricsBindAddress"),
    _flag("view-bind-address", _S, "view_bind_address", with_config=True),
    _flag("bind-address-hard-fail", _B, "bindAddressHardFail"),
    _flag("profiling", _B, "enableProfiling"),
    _flag("counters", _S, "counters.series", with_config=True),
    _flag("count-traffic", _B, "counters.traffic", with_config=True),
    _flag("counters-limit", _I, "counters.limit", with_config=True),
    _flag("show-hidden-metrics-for-version", _S, "showHiddenMetricsForVersion"),
    _flag("healthz-port", _I, default="10256", warning="is deprecated: use --healthz-bind-address"),
    _flag("metrics-port", _I, default="10249", warning="is deprecated: use --metrics-bind-address"),
)
_PROCESS = _group(
    Group.PROCESS,
    _flag("cleanup", _B, "cleanup", with_config=True),
    _flag("cleanup-all", _B, "cleanup_all", with_config=True),
    _flag("state-dir", _S, "state_dir", with_config=True),
    _flag("init-only", _B, "init_only", with_config=True),
    _flag("takeover", _B, "takeover", with_config=True),
    _flag("oom-score-adj", _I, "oomScoreAdj"),
    _flag("help", _B, short="h", with_config=True),
    _flag("version", _B, with_config=True),
)
_LOGGING = _group(
    Group.LOGGING,
    _flag("v", _I, "logging.verbosity", short="v", with_config=True),
    _flag("vmodule", ValueKind.VMODULE, "logging.vmodule", with_config=True),
    _flag("logging-format", _S, "logging.format", with_config=True),
    _flag("log-flush-frequency", _D, "logging.flushFrequency", with_config=True),
    _flag("log-json-split-stream", _B, "logging.options.json.splitStream", with_config=True),
    _flag("log-json-info-buffer-size", _Q, "logging.options.json.infoBufferSize", with_config=True),
    _flag("log-text-split-stream", _B, "logging.options.text.splitStream", with_config=True),
    _flag("log-text-info-buffer-size", _Q, "logging.options.text.infoBufferSize", with_config=True),
)
_OLD = (
    Flag("cleanup-iptables", _B, Group.OLD, ("cleanup",), warning="is the old name of --cleanup", with_config=True),
    _old("cleanup-ipvs", _B, "--cleanup removes what vipwire has put into IPVS, and only that"),
    _old("conntrack-max", _I, "use --conntrack-max-per-core and --conntrack-min"),
    _old("google-json-key", _S, "no credentials of a cloud are used"),
    _old("azure-container-registry-config", _S, "no credentials of a cloud are used"),
    _old("resource-container", _S, "the container runtime decides about cgroups"),
    _old("boot-id-file", _S, "nothing reads it"),
    _old("machine-id-file", _S, "nothing reads it"),
    _old("windows-service", _B, _WINDOWS),
    _old("network-name", _S, _WINDOWS),
    _old("source-vip", _S, _WINDOWS),
    _old("enable-dsr", _B, _WINDOWS),
    _old("root-hnsendpoint-name", _S, _WINDOWS),
    _old("forward-healthcheck-vip", _B, _WINDOWS),
    _old("logtostderr", _B, _KLOG),
    _old("alsologtostderr", _B, _KLOG),
    _old("stderrthreshold", _S, _KLOG),
    _old("log-dir", _S, _KLOG),
    _old("log-file", _S, _KLOG),
    _old("log-file-max-size", _I, _KLOG),
    _old("log-backtrace-at", _S, _KLOG),
    _old("add-dir-header", _B, _KLOG),
    _old("skip-headers", _B, _KLOG),
    _old("skip-log-headers", _B, _KLOG),
    _old("one-output", _B, _KLOG),
)

FLAGS: Final[dict[str, Flag]] = {
    flag.name: flag
    for group in (
        _SOURCE,
        _FILE,
        _MODE,
        _IPVS,
        _USERSPACE,
        _EBPF,
        _TRAFFIC,
        _CONNTRACK,
        _SERVERS,
        _PROCESS,
        _LOGGING,
        _OLD,
    )
    for flag in group
}
REMOVED: Final = {"userspace-workers": "one process relays the connections of an IP family; leave the flag out"}
"""Flags of earlier versions, and what to do in their place."""
SHORT: Final[dict[str, Flag]] = {flag.short: flag for flag in FLAGS.values() if flag.short}
FLAG_OF_PATH: Final[dict[str, str]] = {
    path: f"--{flag.name}" for flag in reversed(FLAGS.values()) for path in flag.paths if flag.group is not Group.OLD
}
