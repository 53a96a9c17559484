"""The whole configuration of vipwire as one frozen value.

It is KubeProxyConfiguration v1alpha1, with its sections in `config_sections`, and after it what only flags can say.
Durations are float seconds. What a field means together with others (the mode where none was named, the section of
the selected mode, `primary` in nftables mode) is answered here, once, by properties.
"""

import dataclasses
import enum
import re
from typing import Any, Final

from vipwire.config.gates import Gates, enabled_gates
from vipwire.config.modes import DEFAULT, registered
from vipwire.config.schema import Applied, Section, ValueKind, section, setting, setting_of
from vipwire.config.sections import (
    EBPF,
    IPVS,
    ClientConnection,
    Conntrack,
    Counters,
    DetectLocal,
    IPTables,
    Logging,
    NFTables,
    Winkernel,
)
from vipwire.model.net import Prefix, parse_address
from vipwire.model.value import Value

API_VERSION: Final = "kubeproxy.config.k8s.io/v1alpha1"
KIND: Final = "KubeProxyConfiguration"
PRIMARY: Final = "primary"
"""The word that stands in `nodePortAddresses` for the Node's own primary addresses."""
HEALTHZ_PORT: Final = 10256
METRICS_PORT: Final = 10249
VIEW_PORT: Final = 10247
_LIVE: Final = Applied.LIVE
_NEVER: Final = Applied.NEVER


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


class Config(Section, frozen=True):
    """Everything an operator can say: the fields of KubeProxyConfiguration, then what only flags say.

    An empty `healthz_bind_address`, `metrics_bind_address` or `view_bind_address` means no such server.
    `explicit` holds the dotted paths, in the file's names (`nftables.minSyncPeriod`), that a file or a flag has
    chosen a value for.
    """

    feature_gates: Gates = setting("featureGates", ValueKind.GATES, (), applied=_LIVE)
    client_connection: ClientConnection = section("clientConnection", ClientConnection)
    logging: Logging = section("logging", Logging)
    hostname_override: str = setting("hostnameOverride", ValueKind.STRING, "")
    bind_address: str = setting("bindAddress", ValueKind.STRING, "0.0.0.0", applied=_LIVE)  # noqa: S104  # kube-proxy's default
    healthz_bind_address: str = setting("healthzBindAddress", ValueKind.STRING, "0.0.0.0:10256", applied=_LIVE)
    metrics_bind_address: str = setting("metricsBindAddress", ValueKind.STRING, "127.0.0.1:10249", applied=_LIVE)
    bind_address_hard_fail: bool = setting("bindAddressHardFail", ValueKind.BOOL, default=False, applied=_LIVE)
    enable_profiling: bool = setting("enableProfiling", ValueKind.BOOL, default=False, applied=_LIVE)
    show_hidden_metrics_for_version: str = setting(
        "showHiddenMetricsForVersion", ValueKind.STRING, "", applied=_NEVER
    )
    mode: str = setting("mode", ValueKind.STRING, "")
    iptables: IPTables = section("iptables", IPTables)
    ipvs: IPVS = section("ipvs", IPVS)
    nftables: NFTables = section("nftables", NFTables)
    winkernel: Winkernel = section("winkernel", Winkernel)
    counters: Counters = section("counters", Counters, written=False)
    ebpf: EBPF = section("ebpf", EBPF, written=False)
    detect_local_mode: str = setting("detectLocalMode", ValueKind.STRING, "", applied=_LIVE)
    detect_local: DetectLocal = section("detectLocal", DetectLocal)
    cluster_cidr: str = setting("clusterCIDR", ValueKind.STRING, "", applied=_LIVE)
    node_port_addresses: tuple[str, ...] = setting("nodePortAddresses", ValueKind.STRINGS, (), applied=_LIVE)
    oom_score_adj: int = setting("oomScoreAdj", ValueKind.INT, -999, pointer=True, applied=_LIVE)
    conntrack: Conntrack = section("conntrack", Conntrack)
    config_sync_period: float = setting("configSyncPeriod", ValueKind.DURATION, 900.0, applied=_NEVER)
    port_range: str = setting("portRange", ValueKind.STRING, "", mode="userspace")
    udp_idle_timeout: float = setting("udpIdleTimeout", ValueKind.DURATION, 0.25, written=False, mode="userspace")
    userspace_bind: str = setting("userspaceBind", ValueKind.STRING, "", written=False, mode="userspace")
    windows_run_as_service: bool = setting("windowsRunAsService", ValueKind.BOOL, default=False, applied=_NEVER)

    master: str = ""
    manifests: tuple[str, ...] = ()
    view_bind_address: str = ""
    state_dir: str = "/run/vipwire"
    proxy_mode_fallback: bool = False
    init_only: bool = False
    takeover: bool = False
    cleanup: bool = False
    cleanup_all: bool = False
    write_config_to: str = ""
    config_file: str = ""
    explicit: frozenset[str] = frozenset()

    @property
    def proxy_mode(self) -> str:
        """The mode that is meant: the default one where none was named. Only for a validated configuration."""
        return self.mode or DEFAULT

    @property
    def local_mode(self) -> LocalMode:
        """How local traffic is detected; the default is ClusterCIDR. Only for a validated configuration."""
        return LocalMode(self.detect_local_mode) if self.detect_local_mode else LocalMode.CLUSTER_CIDR

    @property
    def cluster_prefixes(self) -> tuple[Prefix, ...]:
        """`clusterCIDR` as prefixes: none, one, or one of each family. Only for a validated configuration."""
        return tuple(Prefix.parse(part) for part in split_cidrs(self.cluster_cidr))

    @property
    def allowed_node_port_addresses(self) -> tuple[str, ...]:
        """`nodePortAddresses` as it is meant: CIDRs, `(PRIMARY,)`, or nothing for all addresses.

        A mode may take an empty list for `primary`, as kube-proxy's nftables mode does.
        """
        if not self.node_port_addresses and registered(self.proxy_mode).settings.primary_node_ports:
            return (PRIMARY,)
        return self.node_port_addresses

    @property
    def gates(self) -> dict[str, bool]:
        """Every known feature gate and whether it is on."""
        return dict(enabled_gates(self.feature_gates))

    @property
    def sync(self) -> SyncSettings:
        """The settings of the sections that the selected mode reads.

        ipvs has no masquerade settings of its own and takes those of `iptables`, as kube-proxy does. With a blank
        mode kube-proxy reads the `iptables` section; vipwire runs nftables then, and so what was changed under
        `iptables` and not set under `nftables` is honoured: nothing that an operator chose is lost by the other mode.
        """
        settings = registered(self.proxy_mode).settings
        periods, masquerading = getattr(self, settings.periods), getattr(self, settings.masquerading)
        values = {
            "sync_period": periods.sync_period,
            "min_sync_period": periods.min_sync_period,
            "masquerade_bit": masquerading.masquerade_bit,
            "masquerade_all": masquerading.masquerade_all,
        }
        if not self.mode:
            values |= self._inherited()
        return SyncSettings(**values)

    def _inherited(self) -> dict[str, Any]:
        defaults = IPTables()
        return {
            name: getattr(self.iptables, name)
            for name, field in NFTables.__dataclass_fields__.items()
            if hasattr(defaults, name)
            and getattr(self.iptables, name) != getattr(defaults, name)
            and f"nftables.{setting_of(field).name}" not in self.explicit
        }


def split_cidrs(text: str) -> tuple[str, ...]:
    """Split `clusterCIDR` at its commas, without blanks around the parts; nothing for an empty string."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def port_range(text: str) -> range | None:
    """Read `begin-end` (both inclusive), `begin+size` or one port; empty and `0-0` give an empty range: any port.

    None where the text is none of these. Source: apimachinery's ParsePortRange.
    """
    match = re.fullmatch(r"\s*(\d{1,5})(?:([-+])(\d{1,5}))?\s*", text, re.ASCII) if text.strip() else None
    if match is None:
        return None if text.strip() else range(0)
    first, last = int(match[1]), int(match[3] or match[1])
    if match[2] == "+":
        last += first
    if not first <= last <= 65535:
        return None
    return range(first, last + 1) if last else range(0)


def complete(config: Config) -> Config:
    """Fill in what follows from other fields, as kube-proxy does after reading its file.

    The two servers bind to IPv6 by default where `bindAddress` is an IPv6 address; an address without a port takes
    the server's own port; the host name is trimmed and lower-cased.
    """
    ipv6 = ":" in config.bind_address
    healthz, metrics = config.healthz_bind_address, config.metrics_bind_address
    if ipv6 and "healthzBindAddress" not in config.explicit:
        healthz = f"[::]:{HEALTHZ_PORT}"
    if ipv6 and "metricsBindAddress" not in config.explicit:
        metrics = f"[::1]:{METRICS_PORT}"
    return dataclasses.replace(
        config,
        healthz_bind_address=with_port(healthz, HEALTHZ_PORT),
        metrics_bind_address=with_port(metrics, METRICS_PORT),
        view_bind_address=with_port(config.view_bind_address, VIEW_PORT),
        hostname_override=config.hostname_override.strip().lower(),
    )


def with_port(address: str, port: int) -> str:
    """Append a port to a bare IP address; leave everything else to validation."""
    try:
        parsed = parse_address(address)
    except ValueError:
        return address
    return f"{address}:{port}" if len(parsed) == 4 and ":" not in address else f"[{address}]:{port}"
