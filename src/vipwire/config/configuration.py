"""The whole configuration of vipwire as one frozen value.

It has KubeProxyConfiguration v1alpha1, with its sections in `sections`, and the fields that only flags set. Durations
are float seconds. Properties derive values from several fields: the mode if none was named, the section of the
selected mode, `primary` in nftables mode.
"""

import enum
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from vipwire.config.gates import KNOWN_GATES, Gates, find_gate_errors, list_enabled_gates
from vipwire.config.kinds import ValueKind
from vipwire.config.modes import DEFAULT, find_registered, list_mode_names
from vipwire.config.schema import (
    ABOVE_0,
    PRIMARY,
    Applied,
    Group,
    OneOf,
    Section,
    Setting,
    check_cidr_or_primary,
    check_host_port,
    check_range,
    check_readable,
    check_value,
    check_version,
    list_settings,
    parse_port_range,
    setting,
)
from vipwire.config.sections import (
    EBPF,
    IPVS,
    ClientConnection,
    Conntrack,
    Counters,
    DetectLocal,
    IPTables,
    Logging,
    Masquerading,
    NFTables,
    Winkernel,
)
from vipwire.model.net import Prefix, parse_address
from vipwire.model.value import Value

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"
HEALTHZ_PORT: Final = 10256
METRICS_PORT: Final = 10249
VIEW_PORT: Final = 10247
_LIVE, _NEVER = Applied.LIVE, Applied.NEVER


class LocalMode(enum.Enum):
    """The detection of traffic of this node's own Pods (`detectLocalMode`)."""

    CLUSTER_CIDR = "ClusterCIDR"
    NODE_CIDR = "NodeCIDR"
    BRIDGE_INTERFACE = "BridgeInterface"
    INTERFACE_NAME_PREFIX = "InterfaceNamePrefix"


class SyncSettings(Value, frozen=True):
    """The settings of a mode's section. Periods in seconds."""

    sync_period: float
    min_sync_period: float
    masquerade_bit: int
    masquerade_all: bool


def _userspace_bind(value: str) -> Iterator[str]:
    if value not in ("", "vip", "none"):
        yield "must be vip, none or empty" + ("; loopback was removed" if value == "loopback" else "")


class Config(Section, frozen=True):
    """The fields of KubeProxyConfiguration, and those that only flags set.

    Fields have the order of `--help`. An empty `healthz_bind_address`, `metrics_bind_address` or `view_bind_address`
    disables that server. `explicit` holds the dotted paths, in the file's names (`nftables.minSyncPeriod`), that a
    file or a flag has set.
    """

    # fmt: off
    master: str = setting(
        "master", "Address of the API server; overrides the one in the kubeconfig.", "", group=Group.SOURCE,
        in_file=False)
    manifests: tuple[str, ...] = setting(
        "manifests", "Read Services and endpoints from this file or folder (YAML or JSON) and follow its changes, "
        "instead of an API server. May be repeated.", (), group=Group.SOURCE, in_file=False, repeats=True,
        path_of_file=True)
    hostname_override: str = setting(
        "hostname-override", "Name of the Node that this proxy serves; the host name by default.", "",
        group=Group.SOURCE, beside_file=True)
    config_sync_period: float = setting(
        "config-sync-period", "Accepted if greater than 0; vipwire watches the API server and does not poll.",
        900.0, group=Group.SOURCE, check=ABOVE_0, applied=_NEVER)
    client_connection: ClientConnection = setting(default=ClientConnection(), group=Group.SOURCE)
    config_file: str = setting(
        "config", "KubeProxyConfiguration file (kubeproxy.config.k8s.io/v1alpha1). With it, most other flags are "
        "ignored, with a warning.", "", group=Group.FILE, in_file=False, path_of_file=True, own=True)
    write_config_to: str = setting(
        "write-config-to", "Write the configuration that results from all flags and the file to this file, and exit.",
        "", group=Group.FILE, in_file=False, path_of_file=True, own=True)
    feature_gates: Gates = setting(
        "feature-gates", f"Feature gates, as Name=true,Other=false. Known: {', '.join(sorted(KNOWN_GATES))}. "
        "Other gates cause a warning and have no effect.", (), group=Group.FILE, check=find_gate_errors,
        read_as=ValueKind.GATES, applied=_LIVE)
    mode: str = setting(
        "proxy-mode", f"One of {', '.join(list_mode_names())}; empty means {DEFAULT}.", "", group=Group.MODE,
        check=OneOf(list_mode_names, f"must be {{}} or blank (blank means {DEFAULT})", blank=True))
    proxy_mode_fallback: bool = setting(
        "proxy-mode-fallback", "If the mode cannot run on this kernel, use the next mode that can (after ipvs: "
        "iptables, nftables, userspace). Without this flag vipwire exits with an error.", group=Group.MODE,
        in_file=False)
    iptables: IPTables = setting(default=IPTables(), group=Group.MODE)
    nftables: NFTables = setting(default=NFTables(), group=Group.MODE)
    ipvs: IPVS = setting(default=IPVS(), group=Group.IPVS)
    winkernel: Winkernel = setting(default=Winkernel())
    port_range: str = setting(
        "proxy-port-range", "Ports to listen on, as begin-end (both inclusive); empty means any. Unused in other "
        "modes.", "", group=Group.USERSPACE,
        check=check_value(
            lambda text: parse_port_range(text) is not None, "must be a port range such as 30000-32767, or empty"
        ),
        mode="userspace")
    udp_idle_timeout: float = setting(
        "udp-timeout", "Timeout of idle UDP flows in userspace mode. Must be greater than 0.", 0.25,
        group=Group.USERSPACE, check=ABOVE_0, written=False, mode="userspace")
    userspace_bind: str = setting(
        "userspace-bind", "vip: listen at the VIPs. none: listen at the proxy's own ports. Both write no iptables "
        "rules. Empty writes rules.", "", group=Group.USERSPACE, check=_userspace_bind, written=False,
        mode="userspace")
    ebpf: EBPF = setting(default=EBPF(), group=Group.EBPF, written=False)
    bind_address: str = setting(
        "bind-address", "The Node's primary IP address, if it is not the one in the Node object. vipwire binds "
        "nothing to it. An IPv6 address makes IPv6 the primary family.",
        "0.0.0.0", group=Group.TRAFFIC,  # noqa: S104  # kube-proxy's default
        check=check_value(lambda text: check_readable(parse_address, text), "must be an IP address"), applied=_LIVE)
    node_port_addresses: tuple[str, ...] = setting(
        "nodeport-addresses", "Comma-separated CIDRs: NodePorts answer at the node's addresses in them. Or the word "
        "primary. Empty means all addresses; in nftables mode, primary.", (), group=Group.TRAFFIC,
        check=check_cidr_or_primary, applied=_LIVE)
    detect_local_mode: str = setting(
        "detect-local-mode", "Method to recognise traffic of this node's Pods: ClusterCIDR, NodeCIDR, "
        "BridgeInterface or InterfaceNamePrefix; empty means ClusterCIDR.", "", group=Group.TRAFFIC,
        check=OneOf(
            lambda: tuple(mode.value for mode in LocalMode),
            "must be {} or blank (blank means ClusterCIDR)", blank=True),
        applied=_LIVE)
    cluster_cidr: str = setting(
        "cluster-cidr", "The Pods' addresses, for ClusterCIDR: one CIDR, or one of each family, separated by a "
        "comma.", "", group=Group.TRAFFIC, file_name="clusterCIDR", applied=_LIVE)
    detect_local: DetectLocal = setting(default=DetectLocal(), group=Group.TRAFFIC)
    conntrack: Conntrack = setting(default=Conntrack(), group=Group.CONNTRACK)
    healthz_bind_address: str = setting(
        "healthz-bind-address", "IP and port of /healthz, /livez and /readyz; empty disables them.",
        f"0.0.0.0:{HEALTHZ_PORT}", group=Group.SERVERS, check=check_host_port, applied=_LIVE)
    metrics_bind_address: str = setting(
        "metrics-bind-address", "IP and port of /metrics, /proxyMode, /configz; empty disables them.",
        f"127.0.0.1:{METRICS_PORT}", group=Group.SERVERS, check=check_host_port, applied=_LIVE)
    view_bind_address: str = setting(
        "view-bind-address", "IP and port of the page of `vipwire view`, such as 127.0.0.1:10247; empty serves none. "
        "At an address other than loopback, browsers need the token in the file view-token of --state-dir.", "",
        group=Group.SERVERS, check=check_host_port, in_file=False, own=True)
    bind_address_hard_fail: bool = setting(
        "bind-address-hard-fail", "Exit if one of these ports cannot be bound, instead of trying again every 5 s.",
        group=Group.SERVERS, applied=_LIVE)
    enable_profiling: bool = setting(
        "profiling", "Serve /debug on the metrics port: stacks, a profile, the log level.", group=Group.SERVERS,
        applied=_LIVE)
    counters: Counters = setting(default=Counters(), group=Group.SERVERS, written=False)
    show_hidden_metrics_for_version: str = setting(
        "show-hidden-metrics-for-version", "Accepted as <major>.<minor>; vipwire hides no metrics.", "",
        group=Group.SERVERS, check=check_version, applied=_NEVER)
    cleanup: bool = setting(
        "cleanup", "Remove all rules of vipwire, and exit; the same as `vipwire cleanup`.", group=Group.PROCESS,
        in_file=False, own=True)
    cleanup_all: bool = setting(
        "cleanup-all", "With --cleanup, or as `vipwire cleanup --all`: also remove rules with kube-proxy's names "
        "while a kube-proxy runs. By default, vipwire leaves these to kube-proxy.", group=Group.PROCESS,
        in_file=False, own=True)
    state_dir: str = setting(
        "state-dir", "Folder that commands share with the proxy: the list of drained endpoints, the proxy's record.",
        "/run/vipwire", group=Group.PROCESS, in_file=False, own=True)
    init_only: bool = setting(
        "init-only", "Set kernel settings, which needs full privileges, and exit. The proxy itself then needs "
        "CAP_NET_ADMIN only.", group=Group.PROCESS, in_file=False, own=True)
    takeover: bool = setting(
        "takeover", "Replace the vipwire proxy or up that runs in this network namespace: the old process ends "
        "first, the rules stay, and no connection breaks. Without --takeover, a second process does not start.",
        group=Group.PROCESS, in_file=False, own=True)
    oom_score_adj: int = setting(
        "oom-score-adj", "The oom-score-adj of this process, -1000 to 1000.", -999, group=Group.PROCESS,
        check=check_range(-1000, 1000), pointer=True, applied=_LIVE)
    logging: Logging = setting(default=Logging(), group=Group.LOGGING)
    windows_run_as_service: bool = setting(applied=_NEVER)
    # fmt: on

    explicit: frozenset[str] = frozenset()

    @property
    def proxy_mode(self) -> str:
        """The mode, or the default one if none was named. Only for a validated configuration."""
        return self.mode or DEFAULT

    @property
    def local_mode(self) -> LocalMode:
        """The detection of local traffic; the default is ClusterCIDR. Only for a validated configuration."""
        return LocalMode(self.detect_local_mode) if self.detect_local_mode else LocalMode.CLUSTER_CIDR

    @property
    def cluster_prefixes(self) -> tuple[Prefix, ...]:
        """`clusterCIDR` as prefixes: none, one, or one of each family. Only for a validated configuration."""
        return tuple(Prefix.parse(part) for part in split_cidrs(self.cluster_cidr))

    @property
    def allowed_node_port_addresses(self) -> tuple[str, ...]:
        """`nodePortAddresses` after defaults: CIDRs, `(PRIMARY,)`, or () for all addresses.

        A mode may read an empty list as `primary`, as kube-proxy's nftables mode does.
        """
        if not self.node_port_addresses and find_registered(self.proxy_mode).settings.primary_node_ports:
            return (PRIMARY,)
        return self.node_port_addresses

    @property
    def gates(self) -> dict[str, bool]:
        return dict(list_enabled_gates(self.feature_gates))

    @property
    def sync(self) -> SyncSettings:
        """The settings of the sections that the selected mode reads.

        ipvs mode has no masquerade settings of its own and reads those of `iptables`, as kube-proxy does. With a
        blank mode kube-proxy reads the `iptables` section, but vipwire runs nftables mode: it then uses `iptables`
        settings that an operator changed and did not set under `nftables`.
        """
        settings = find_registered(self.proxy_mode).settings
        periods, masquerading = getattr(self, settings.periods), getattr(self, settings.masquerading)
        if not self.mode:
            periods = masquerading = self._inherit_from_iptables()
        return SyncSettings(
            sync_period=periods.sync_period,
            min_sync_period=periods.min_sync_period,
            masquerade_bit=masquerading.masquerade_bit,
            masquerade_all=masquerading.masquerade_all,
        )

    def _inherit_from_iptables(self) -> NFTables:
        chosen = {
            name: getattr(self.iptables, name)
            for name, row in Masquerading.settings.items()
            if getattr(self.iptables, name) != getattr(IPTables(), name)
            and f"nftables.{row.path}" not in self.explicit
        }
        return replace(self.nftables, **chosen)


ROWS: Final[dict[str, Setting]] = {row.path: row for row in list_settings(Config)}
"""Every field that is no section, by its path in the file, or by its attribute if no file has it."""


def split_cidrs(text: str) -> tuple[str, ...]:
    """Split `clusterCIDR` at its commas, without blanks around the parts; empty for an empty string."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def fill_dependent_fields(config: Config) -> Config:
    """Derive fields from others, as kube-proxy does after reading its file.

    The two servers bind to IPv6 by default if `bindAddress` is an IPv6 address; an address without a port takes the
    server's own port; the host name is trimmed and lower-cased.
    """
    ipv6 = ":" in config.bind_address
    healthz, metrics = config.healthz_bind_address, config.metrics_bind_address
    if ipv6 and "healthzBindAddress" not in config.explicit:
        healthz = f"[::]:{HEALTHZ_PORT}"
    if ipv6 and "metricsBindAddress" not in config.explicit:
        metrics = f"[::1]:{METRICS_PORT}"
    return replace(
        config,
        healthz_bind_address=append_port(healthz, HEALTHZ_PORT),
        metrics_bind_address=append_port(metrics, METRICS_PORT),
        view_bind_address=append_port(config.view_bind_address, VIEW_PORT),
        hostname_override=config.hostname_override.strip().lower(),
    )


def append_port(address: str, port: int) -> str:
    """Append a port to a bare IP address; leave all other text to validation."""
    try:
        parsed = parse_address(address)
    except ValueError:
        return address
    return f"{address}:{port}" if len(parsed) == 4 and ":" not in address else f"[{address}]:{port}"
