"""The ModeSpec of ebpf mode."""

from typing import Final

from vipwire.backends.nftables.mode import MODE as RULES
from vipwire.backends.spec import ModeSpec, Tool
from vipwire.config.modes import ModeSettings

MODE: Final = ModeSpec(
    name="ebpf",
    driver="vipwire.backends.ebpf.driver",
    settings=ModeSettings(
        periods="nftables",
        masquerading="nftables",
        primary_node_ports=True,
    ),
    for_whom="somebody with Linux 5.14 or newer on whose nodes many connections begin: they go to endpoints directly",
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
