"""Settings of one family's rules besides the plan: the configuration, and what this machine can do."""

from dataclasses import replace

from vipwire.model.net import Address, Family
from vipwire.model.value import Value
from vipwire.plan.node import NodePlan

_IPV4_LOOPBACK = Address(b"\x7f\0\0\1")


class RuleSettings(Value, frozen=True):
    """The operator's choices and the machine's abilities.

    `localhost_node_ports`: node ports answer on 127.0.0.1 as well. `drop_invalid`: what conntrack calls INVALID is
    dropped (not with `conntrack.tcpBeLiberal`). `tree`: dispatch by a tree instead of kube-proxy's flat chain.
    `by_tools`: iptables-restore writes the rules, never vipwire itself. The others are matches and options that some
    kernels and tools lack.
    """

    localhost_node_ports: bool = True
    drop_invalid: bool = True
    tree: bool = True
    by_tools: bool = False
    counters: bool = True
    random_fully: bool = True
    affinity: bool = True
    source_hash: bool = True

    def on(self, node: NodePlan) -> "RuleSettings":
        """Restrict the settings to what makes sense on a node.

        Loopback serves node ports in IPv4 only, and only where `nodePortAddresses` does not leave it out.
        """
        if not self.localhost_node_ports:
            return self
        loopback = node.family is Family.IPV4 and any(_IPV4_LOOPBACK in prefix for prefix in node.node_port_addresses)
        return self if loopback else replace(self, localhost_node_ports=False)
