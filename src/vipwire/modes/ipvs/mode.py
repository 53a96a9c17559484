"""The ModeSpec of ipvs mode, with the annotations that it does not support."""

from typing import Final

from vipwire.config.modes import MetricGroup, ModeSettings
from vipwire.modes.spec import ONLY_IN_USERSPACE, Difference, ModeSpec, Tool
from vipwire.plan.annotations import Balancing, Lack, Scope

LACKS: Final = (
    Lack("balancing", "ipvs mode does not support 'random': the node's scheduler applies", (Balancing.RANDOM,)),
    Lack(
        "scope",
        "ipvs mode does not support 'service': IPVS remembers a client for each port separately",
        (Scope.SERVICE,),
    ),
    ONLY_IN_USERSPACE,
)


MODE: Final = ModeSpec(
    name="ipvs",
    driver="vipwire.modes.ipvs.driver",
    inspection="vipwire.modes.ipvs.explain.explainer",
    settings=ModeSettings(periods="ipvs", masquerading="iptables"),
    for_whom="IPVS schedulers, direct return, `ipvsadm -Ln`. Deprecated in kube-proxy",
    lacks=LACKS,
    metrics=frozenset({MetricGroup.IPTABLES_RESTORE, MetricGroup.CONNECTION_TRACKING}),
    page="ipvs.md",
    # iptables first: it has the same chain names and serves node ports at the same addresses.
    fallback=("iptables", "nftables", "userspace"),
    differences=(
        Difference(
            ("S8",),
            "New connections go to the endpoints in turn, not at random. The shares are the same.",
            "IPVS has no random scheduler. Its default, rr, takes turns.",
        ),
        Difference(
            ("S73",),
            "A client with session affinity may have one endpoint at the ClusterIP and another one at the node port.",
            "IPVS remembers clients for each virtual server separately, with kube-proxy as well.",
        ),
        Difference(
            ("S75",),
            "Session affinity may last two minutes longer than timeoutSeconds.",
            "The kernel remembers a client until its last connection has left TIME_WAIT, two minutes after its end.",
        ),
        Difference(
            ("S101",),
            "Deleting a Service ends its open connections.",
            "The kernel forgets the connections of a virtual server together with it.",
        ),
        Difference(
            ("S168", "S169"),
            "A host port of a Pod, or another nat rule for an address of the node, takes a Service's connections.",
            "IPVS sees packets at input only, behind all nat chains, and every ClusterIP is an address of the node.",
        ),
        Difference(
            ("S173",),
            "A Service with an endpoint's address and port as external IP stops other Services' connections there.",
            "Packets from IPVS meet routes and the rules of OUTPUT again, with the endpoint's address.",
        ),
        Difference(
            ("S174",),
            "A DNS cache of the node at the address of the DNS Service gets no packets.",
            "IPVS takes all packets to the address and port of a virtual server.",
        ),
    ),
    tools=(Tool("ipvsadm", "shows the virtual servers of ipvs mode"),),
    port_ranges=True,
    per_address=True,
)
