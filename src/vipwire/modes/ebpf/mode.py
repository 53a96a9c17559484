"""The ModeSpec of ebpf mode."""

from typing import Final

from vipwire.config.modes import ModeSettings
from vipwire.modes.nftables.mode import MODE as RULES
from vipwire.modes.spec import ModeSpec, Tool

MODE: Final = ModeSpec(
    name="ebpf",
    driver="vipwire.modes.ebpf.driver",
    inspection="vipwire.modes.ebpf.explain",
    settings=ModeSettings(
        periods="nftables",
        masquerading="nftables",
        primary_node_ports=True,
    ),
    for_whom=(
        "Linux 5.14 or newer, and many new connections from Pods and the node: sockets connect to endpoints directly"
    ),
    lacks=RULES.lacks,
    metrics=RULES.metrics,
    page="ebpf.md",
    fallback=("nftables", "iptables", "userspace"),
    includes=(RULES.name,),
    tools=(*RULES.tools, Tool("bpftool", "shows programs and maps of ebpf mode")),
    port_ranges=RULES.port_ranges,
    direct=True,
    per_address=True,
)
