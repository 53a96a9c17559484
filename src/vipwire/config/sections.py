"""The sections of KubeProxyConfiguration v1alpha1 as frozen values, with kube-proxy's defaults.

Durations are float seconds. If a default differs from kube-proxy's, the section's docstring says why. Fields have the
order of `--help`.
"""

import enum

from vipwire.config.kinds import ModuleVerbosity, ValueKind
from vipwire.config.schema import (
    ABOVE_0,
    AT_LEAST_0,
    Applied,
    OneOf,
    Section,
    check_cidr,
    check_range,
    check_value,
    setting,
)

_LIVE, _NEVER = Applied.LIVE, Applied.NEVER

# fmt: off


class ClientConnection(Section, frozen=True):
    """The connection to the API server (`clientConnection`)."""

    kubeconfig: str = setting(
        "kubeconfig", "Kubeconfig file with the address of the API server and the credentials. Without --kubeconfig, "
        "--master and --manifests, vipwire uses the Pod's service account.", "", path_of_file=True, first=True)
    accept_content_types: str = setting(default="", applied=_NEVER)
    content_type: str = setting(
        "kube-api-content-type", "Accepted; vipwire always sends and asks for JSON.",
        "application/vnd.kubernetes.protobuf", applied=_NEVER)
    qps: float = setting("kube-api-qps", "Requests to the API server per second.", 5.0, read_as=ValueKind.FLOAT)
    burst: int = setting(
        "kube-api-burst", "Burst of requests to the API server above --kube-api-qps.", 10,
        check=check_value(lambda value: value >= 0, "must be non-negative"))


class LogOutput(Section, frozen=True):
    """Options of one log format. The buffer's size has no effect: vipwire writes every line at once."""

    split_stream: bool = setting(
        "log-*-split-stream", "With *: errors to stderr, everything else to stdout.", applied=_LIVE, beside_file=True)
    info_buffer_size: str = setting(
        "log-*-info-buffer-size", "Accepted; vipwire buffers no log lines.", "0", read_as=ValueKind.QUANTITY,
        applied=_NEVER, beside_file=True)


class LogOptions(Section, frozen=True):
    """Options of the log formats (`logging.options`)."""

    json: LogOutput = setting(default=LogOutput())
    text: LogOutput = setting(default=LogOutput())


class Logging(Section, frozen=True):
    """The level and format of the log (`logging`)."""

    verbosity: int = setting(
        "v", "Verbosity of the log, from 0 to 10.", 0, check=check_range(0, 2**31 - 1), short="v", applied=_LIVE,
        beside_file=True)
    vmodule: tuple[ModuleVerbosity, ...] = setting(
        "vmodule", "Verbosity for single source files, as file=N,other*=M.", (), read_as=ValueKind.VMODULE,
        applied=_LIVE, beside_file=True)
    format: str = setting(
        "logging-format", "text (key=value) or json, one line each.", "text",
        check=OneOf(lambda: ("text", "json"), "must be text or json"), applied=_LIVE, beside_file=True)
    flush_frequency: float = setting(
        "log-flush-frequency", "Accepted; vipwire writes each line at once.", 5.0,
        check=check_value(lambda value: value >= 0, "must not be negative"), applied=_NEVER, beside_file=True)
    options: LogOptions = setting(default=LogOptions())


class Masquerading(Section, frozen=True):
    """The fields that the sections `iptables` and `nftables` share; a flag sets both."""

    sync_period: float = setting(
        "iptables-sync-period", "How often vipwire compares the kernel with the plan, in every mode other than ipvs; "
        "in nftables mode the longest pause between repairs. Must be greater than 0.", 30.0, check=ABOVE_0,
        applied=_LIVE)
    min_sync_period: float = setting(
        "iptables-min-sync-period", "Shortest time between two syncs, in every mode other than ipvs. 0 applies every "
        "change at once, which is the default of nftables mode.", 0.0, check=AT_LEAST_0, applied=_LIVE)
    masquerade_bit: int = setting(
        "iptables-masquerade-bit", "Bit of the packet mark (0 to 31) that marks packets for source NAT.", 14,
        check=check_range(0, 31), pointer=True, applied=_LIVE)
    masquerade_all: bool = setting("masquerade-all", "Apply source NAT to all traffic to ClusterIPs.", applied=_LIVE)


class IPTables(Masquerading, frozen=True):
    """The `iptables` section; userspace mode uses it, too.

    Two fields are vipwire's own. `tree`: find Services through a tree of chains instead of kube-proxy's flat chain.
    `by_tools`: write rules with iptables-restore, even if vipwire could write the kernel's tables itself.
    """

    min_sync_period: float = 1.0
    localhost_node_ports: bool = setting(
        "iptables-localhost-nodeports", "Answer NodePorts on 127.0.0.1 too (iptables mode, IPv4).", default=True,
        pointer=True)
    tree: bool = setting(default=True, file_name="iptablesTree", pointer=True, written=False)
    by_tools: bool = setting(file_name="iptablesByTools", written=False)


class IPVS(Section, frozen=True):
    """The `ipvs` section. Timeouts of 0 leave the kernel's value."""

    scheduler: str = setting(
        "ipvs-scheduler", "Scheduler of virtual servers, such as rr, wrr, lc, wlc, sh, dh, sed, nq, mh; empty means "
        "rr.", "")
    sync_period: float = setting(
        "ipvs-sync-period", "As --iptables-sync-period, for ipvs mode.", 30.0, check=ABOVE_0, applied=_LIVE)
    min_sync_period: float = setting(
        "ipvs-min-sync-period", "As --iptables-min-sync-period, for ipvs mode.", 0.0, check=AT_LEAST_0, applied=_LIVE)
    exclude_cidrs: tuple[str, ...] = setting(
        "ipvs-exclude-cidrs", "Comma-separated CIDRs: vipwire leaves virtual servers with these addresses alone.", (),
        check=check_cidr, file_name="excludeCIDRs")
    strict_arp: bool = setting(
        "ipvs-strict-arp", "Set arp_ignore to 1 and arp_announce to 2: the node then does not answer ARP for VIPs.",
        file_name="strictARP")
    tcp_timeout: float = setting(
        "ipvs-tcp-timeout", "Timeout of idle TCP connections; 0 keeps the kernel's value.", 0.0, check=AT_LEAST_0)
    tcp_fin_timeout: float = setting(
        "ipvs-tcpfin-timeout", "Timeout of TCP connections after a FIN; 0 keeps the kernel's value.", 0.0,
        check=AT_LEAST_0)
    udp_timeout: float = setting(
        "ipvs-udp-timeout", "Timeout of UDP flows; 0 keeps the kernel's value.", 0.0, check=AT_LEAST_0)


class NFTables(Masquerading, frozen=True):
    """The `nftables` section. vipwire applies changes without delay by default, unlike kube-proxy (1 s).

    One field is vipwire's own: `offload_packet_threshold`, the packets of a TCP connection after which a flowtable
    takes over the connection; 0 for never.
    """

    offload_packet_threshold: int = setting(
        "offload-packet-threshold", "Packets after which the kernel offloads a forwarded TCP connection to a "
        "flowtable, which bypasses all rules. 20 is a good value; 0 offloads nothing. In nftables and ebpf mode.", 0,
        check=AT_LEAST_0, written=False)


class Winkernel(Section, frozen=True):
    """The `winkernel` section: accepted, without effect on Linux."""

    network_name: str = setting(default="", applied=_NEVER)
    source_vip: str = setting(default="", applied=_NEVER)
    enable_dsr: bool = setting(file_name="enableDSR", applied=_NEVER)
    root_hns_endpoint_name: str = setting(default="", applied=_NEVER)
    forward_health_check_vip: bool = setting(applied=_NEVER)


class DetectLocal(Section, frozen=True):
    """The names that two of the modes of `detectLocalMode` need."""

    bridge_interface: str = setting(
        "pod-bridge-interface", "Name of the bridge for BridgeInterface.", "", applied=_LIVE)
    interface_name_prefix: str = setting(
        "pod-interface-name-prefix", "Prefix of the Pods' interface names, for InterfaceNamePrefix.", "",
        applied=_LIVE)


class Conntrack(Section, frozen=True):
    """The kernel's connection tracking (`conntrack`); 0 leaves the kernel's value."""

    max_per_core: int = setting(
        "conntrack-max-per-core", "Connections to track per CPU; 0 keeps the kernel's limit and ignores "
        "--conntrack-min.", 32768, check=AT_LEAST_0, pointer=True, applied=_LIVE)
    min: int = setting(
        "conntrack-min", "Lower limit of the number of connections to track.", 131072, check=AT_LEAST_0, pointer=True,
        applied=_LIVE)
    tcp_established_timeout: float = setting(
        "conntrack-tcp-timeout-established", "Timeout of idle established TCP connections; 0 keeps the kernel's "
        "value.", 86400.0, check=AT_LEAST_0, pointer=True, applied=_LIVE)
    tcp_close_wait_timeout: float = setting(
        "conntrack-tcp-timeout-close-wait", "Timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's value.",
        3600.0, check=AT_LEAST_0, pointer=True, applied=_LIVE)
    tcp_be_liberal: bool = setting(
        "conntrack-tcp-be-liberal", "Accept packets outside of the TCP window instead of treating them as invalid.")
    udp_timeout: float = setting(
        "conntrack-udp-timeout", "Timeout of UDP flows without an answer; 0 keeps the kernel's value.", 0.0,
        check=AT_LEAST_0, applied=_LIVE)
    udp_stream_timeout: float = setting(
        "conntrack-udp-timeout-stream", "Timeout of UDP flows with answers; 0 keeps the kernel's value.", 0.0,
        check=AT_LEAST_0, applied=_LIVE)


class EBPF(Section, frozen=True):
    """The `ebpf` section: vipwire's own, which kube-proxy does not know."""

    cgroup: str = setting(
        "ebpf-cgroup", "Folder of a cgroup2 with the processes whose sockets vipwire translates at connect(); empty "
        "means the machine's root: all processes.", "", mode="ebpf")
    clients: str = setting(
        "ebpf-clients", "Sockets to translate: all (of the node and its Pods), or node. With a service mesh whose "
        "sidecars need the Service's address, use node. Tests also give paths of network namespaces, separated by "
        "commas.", "all", mode="ebpf")
    connected_udp: bool = setting(
        "ebpf-connected-udp", "Also translate connected UDP sockets. vipwire destroys the sockets of a removed "
        "endpoint: the next call returns ECONNABORTED, and the program can connect again. Needs CAP_SYS_ADMIN and "
        "hostPID for Pods.", file_name="connectedUDP", mode="ebpf")
    affinity: bool = setting(
        "ebpf-affinity", "Also serve session affinity of Pods with programs, which is faster. Programs identify a "
        "client by its network namespace, rules by its address: a client that meets both can have two endpoints.",
        mode="ebpf")


class Series(enum.Enum):
    """The granularity of the metrics of Services; the value is the spelling in the configuration."""

    NONE = "none"
    SERVICES = "services"
    ENDPOINTS = "endpoints"


class CounterLevel(enum.IntEnum):
    """The packets that a mode counts: none; the first of each connection and refused ones; or all."""

    NOTHING = 0
    CONNECTIONS = 1
    TRAFFIC = 2


class Counters(Section, frozen=True):
    """The counters in /metrics (`counters`): vipwire's own section, which kube-proxy does not know."""

    series: str = setting(
        "counters", "Count connections and refused packets for /metrics: none, services (by Service port), or "
        "endpoints (by endpoint, too).", "services", check=OneOf(lambda: tuple(series.value for series in Series)),
        beside_file=True)
    traffic: bool = setting(
        "count-traffic", "Also count packets and bytes in nftables mode; this adds a cost to each packet. ipvs and "
        "userspace mode always count them, iptables mode never does.", beside_file=True)
    limit: int = setting(
        "counters-limit", "The most Service ports, endpoints and refusals that get series of their own in /metrics.",
        5000, check=ABOVE_0, beside_file=True)

    @property
    def level(self) -> CounterLevel:
        if self.series == Series.NONE.value:
            return CounterLevel.NOTHING
        return CounterLevel.TRAFFIC if self.traffic else CounterLevel.CONNECTIONS


COUNTER_FIELDS = frozenset({"counters.series", "counters.traffic"})
