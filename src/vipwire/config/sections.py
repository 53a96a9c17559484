"""The sections of KubeProxyConfiguration v1alpha1 as frozen values, with kube-proxy's defaults.

Durations are float seconds. Where a default differs from kube-proxy's, the section's docstring says so and why.
"""

import enum

from vipwire.config.schema import Applied, Section, ValueKind, section, setting

_LIVE, _NEVER = Applied.LIVE, Applied.NEVER


class ClientConnection(Section, frozen=True):
    """The connection to the API server (`clientConnection`)."""

    kubeconfig: str = setting("kubeconfig", ValueKind.STRING, "")
    accept_content_types: str = setting("acceptContentTypes", ValueKind.STRING, "", applied=_NEVER)
    content_type: str = setting(
        "contentType", ValueKind.STRING, "application/vnd.kubernetes.protobuf", applied=_NEVER
    )
    qps: float = setting("qps", ValueKind.FLOAT, 5.0)
    burst: int = setting("burst", ValueKind.INT, 10)


class LogOutput(Section, frozen=True):
    """Options of one log format. The buffer's size is accepted and has no effect: every line is written at once."""

    info_buffer_size: str = setting("infoBufferSize", ValueKind.QUANTITY, "0", applied=_NEVER)
    split_stream: bool = setting("splitStream", ValueKind.BOOL, default=False, applied=_LIVE)


class LogOptions(Section, frozen=True):
    """Options of the log formats (`logging.options`)."""

    json: LogOutput = section("json", LogOutput)
    text: LogOutput = section("text", LogOutput)


class ModuleVerbosity(Section, frozen=True):
    """One `pattern=N` of `--vmodule`: source files that match the glob log at verbosity N."""

    file_pattern: str
    verbosity: int


class Logging(Section, frozen=True):
    """The level and format of the log (`logging`)."""

    format: str = setting("format", ValueKind.STRING, "text", applied=_LIVE)
    flush_frequency: float = setting("flushFrequency", ValueKind.DURATION, 5.0, applied=_NEVER)
    verbosity: int = setting("verbosity", ValueKind.INT, 0, applied=_LIVE)
    vmodule: tuple[ModuleVerbosity, ...] = setting("vmodule", ValueKind.VMODULE, (), applied=_LIVE)
    options: LogOptions = section("options", LogOptions)


class IPTables(Section, frozen=True):
    """The `iptables` section; also what userspace mode uses.

    Two are vipwire's own. `tree`: Services are found through a tree of chains, or, without it, in kube-proxy's flat
    one. `by_tools`: iptables-restore writes the rules, where vipwire could write the kernel's tables itself.
    """

    masquerade_bit: int = setting("masqueradeBit", ValueKind.INT, 14, pointer=True, applied=_LIVE)
    masquerade_all: bool = setting("masqueradeAll", ValueKind.BOOL, default=False, applied=_LIVE)
    localhost_node_ports: bool = setting("localhostNodePorts", ValueKind.BOOL, default=True, pointer=True)
    sync_period: float = setting("syncPeriod", ValueKind.DURATION, 30.0, applied=_LIVE)
    min_sync_period: float = setting("minSyncPeriod", ValueKind.DURATION, 1.0, applied=_LIVE)
    tree: bool = setting("iptablesTree", ValueKind.BOOL, default=True, pointer=True, written=False)
    by_tools: bool = setting("iptablesByTools", ValueKind.BOOL, default=False, written=False)


class IPVS(Section, frozen=True):
    """The `ipvs` section. Timeouts of 0 leave the kernel's value."""

    sync_period: float = setting("syncPeriod", ValueKind.DURATION, 30.0, applied=_LIVE)
    min_sync_period: float = setting("minSyncPeriod", ValueKind.DURATION, 0.0, applied=_LIVE)
    scheduler: str = setting("scheduler", ValueKind.STRING, "")
    exclude_cidrs: tuple[str, ...] = setting("excludeCIDRs", ValueKind.STRINGS, ())
    strict_arp: bool = setting("strictARP", ValueKind.BOOL, default=False)
    tcp_timeout: float = setting("tcpTimeout", ValueKind.DURATION, 0.0)
    tcp_fin_timeout: float = setting("tcpFinTimeout", ValueKind.DURATION, 0.0)
    udp_timeout: float = setting("udpTimeout", ValueKind.DURATION, 0.0)


class NFTables(Section, frozen=True):
    """The `nftables` section. Unlike kube-proxy's 1 s, no waiting by default: a change is applied when it comes.

    One is vipwire's own: `offload_packet_threshold`, the packets of a TCP connection after which a flowtable takes it
    over; 0 for none.
    """

    masquerade_bit: int = setting("masqueradeBit", ValueKind.INT, 14, pointer=True, applied=_LIVE)
    masquerade_all: bool = setting("masqueradeAll", ValueKind.BOOL, default=False, applied=_LIVE)
    sync_period: float = setting("syncPeriod", ValueKind.DURATION, 30.0, applied=_LIVE)
    min_sync_period: float = setting("minSyncPeriod", ValueKind.DURATION, 0.0, applied=_LIVE)
    offload_packet_threshold: int = setting("offloadPacketThreshold", ValueKind.INT, 0, written=False)


class Winkernel(Section, frozen=True):
    """The `winkernel` section: accepted, without effect on Linux."""

    network_name: str = setting("networkName", ValueKind.STRING, "", applied=_NEVER)
    source_vip: str = setting("sourceVip", ValueKind.STRING, "", applied=_NEVER)
    enable_dsr: bool = setting("enableDSR", ValueKind.BOOL, default=False, applied=_NEVER)
    root_hns_endpoint_name: str = setting("rootHnsEndpointName", ValueKind.STRING, "", applied=_NEVER)
    forward_health_check_vip: bool = setting("forwardHealthCheckVip", ValueKind.BOOL, default=False, applied=_NEVER)


class DetectLocal(Section, frozen=True):
    """The names that two of the modes of `detectLocalMode` need."""

    bridge_interface: str = setting("bridgeInterface", ValueKind.STRING, "", applied=_LIVE)
    interface_name_prefix: str = setting("interfaceNamePrefix", ValueKind.STRING, "", applied=_LIVE)


class Conntrack(Section, frozen=True):
    """The kernel's connection tracking (`conntrack`); 0 leaves the kernel's value."""

    max_per_core: int = setting("maxPerCore", ValueKind.INT, 32768, pointer=True, applied=_LIVE)
    min: int = setting("min", ValueKind.INT, 131072, pointer=True, applied=_LIVE)
    tcp_established_timeout: float = setting(
        "tcpEstablishedTimeout", ValueKind.DURATION, 86400.0, pointer=True, applied=_LIVE
    )
    tcp_close_wait_timeout: float = setting(
        "tcpCloseWaitTimeout", ValueKind.DURATION, 3600.0, pointer=True, applied=_LIVE
    )
    tcp_be_liberal: bool = setting("tcpBeLiberal", ValueKind.BOOL, default=False)
    udp_timeout: float = setting("udpTimeout", ValueKind.DURATION, 0.0, applied=_LIVE)
    udp_stream_timeout: float = setting("udpStreamTimeout", ValueKind.DURATION, 0.0, applied=_LIVE)


class EBPF(Section, frozen=True):
    """The `ebpf` section: vipwire's own, which kube-proxy does not know.

    `cgroup` is the folder of cgroup2 whose sockets are translated, by default the machine's root. `clients` says
    whose they are: all, node, or the network namespaces of Pods, as paths. `connected_udp`: connected UDP sockets are
    given endpoints, too, and ended when these go. `affinity`: programs serve session affinity of Pods.
    """

    cgroup: str = setting("cgroup", ValueKind.STRING, "", mode="ebpf")
    clients: str = setting("clients", ValueKind.STRING, "all", mode="ebpf")
    connected_udp: bool = setting("connectedUDP", ValueKind.BOOL, default=False, mode="ebpf")
    affinity: bool = setting("affinity", ValueKind.BOOL, default=False, mode="ebpf")


class Series(enum.Enum):
    """The granularity of the metrics of Services; the value is the word of the configuration."""

    NONE = "none"
    SERVICES = "services"
    ENDPOINTS = "endpoints"


class Counters(Section, frozen=True):
    """The counters in /metrics (`counters`): vipwire's own section, which kube-proxy does not know.

    `series` is none, services or endpoints; `limit` is how many of these are told apart at most; `traffic` counts
    every packet, where that costs something.
    """

    series: str = setting("series", ValueKind.STRING, "services")
    traffic: bool = setting("traffic", ValueKind.BOOL, default=False)
    limit: int = setting("limit", ValueKind.INT, 5000)
