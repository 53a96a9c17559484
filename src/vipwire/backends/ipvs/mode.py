"""The ModeSpec of ipvs mode."""

from typing import Final

from vipwire.backends.ipvs.limits import LACKS
from vipwire.backends.spec import Difference, ModeSpec, Tool
from vipwire.config.modes import MetricGroup, ModeSettings

MODE: Final = ModeSpec(
    name="ipvs",
    driver="vipwire.backends.ipvs.driver",
    settings=ModeSettings(periods="ipvs", masquerading="iptables"),
    for_whom="somebody who relies on IPVS: its schedulers, direct return, `ipvsadm -Ln`. "
    "kube-proxy is giving this mode up",
    lacks=LACKS,
    metrics=frozenset({MetricGroup.IPTABLES_RESTORE, MetricGroup.CONNECTION_TRACKING}),
    page="ipvs.md",
    # First iptables: its names are kube-proxy's too, and it serves node ports at the same addresses.
    fallback=("iptables", "nftables", "userspace"),
    differences=(
        Difference(
            ("S8",),
            "each new connection chooses at random",
            "IPVS has no random choice: rr, its scheduler by default, deals in turn",
        ),
        Difference(
            ("S57",),
            "other ports of external and load balancer IPs are passed on",
            "packets to external addresses come to IPVS because they are this node's own: it cannot pass them on",
        ),
        Difference(
            ("S73",),
            "session affinity is shared by all frontends of a Service port",
            "IPVS remembers a client for each virtual server by itself, in kube-proxy as well",
        ),
        Difference(
            ("S75",),
            "session affinity ends after timeoutSeconds",
            "the kernel remembers a client until its last connection has left TIME_WAIT, two minutes after it ended",
        ),
        Difference(
            ("S101",),
            "open connections outlive the deletion of their Service",
            "the kernel forgets a virtual server's connections when it is deleted",
        ),
    ),
    tools=(Tool("ipvsadm", "shows the virtual servers of ipvs mode"),),
    vip_devices=frozenset({"kube-ipvs0"}),
    port_ranges=True,
    per_address=True,
)
