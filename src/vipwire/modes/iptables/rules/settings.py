"""The settings of one family's rules: the configuration, and the abilities of this machine."""

from dataclasses import replace

from vipwire.model.net import Address, Family
from vipwire.model.value import Value
from vipwire.plan.node import NodePlan

_IPV4_LOOPBACK = Address(b"\x7f\0\0\1")


class RuleSettings(Value, frozen=True):
    """The operator's choices and the machine's abilities.

    `localhost_node_ports`: node ports answer on 127.0.0.1, too. `drop_invalid`: drop packets in conntrack state
    INVALID (not with `conntrack.tcpBeLiberal`). `tree`: dispatch by a tree instead of kube-proxy's flat chain.
    `by_tools`: only iptables-restore writes the rules. The other fields are matches and options that some kernels and
    tools lack.
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
        """Restrict the settings to those that apply to a node.

        Loopback serves node ports only in IPv4, and only if `nodePortAddresses` includes it.
        """
        if not self.localhost_node_ports:
            return self
        loopback = node.family is Family.IPV4 and any(_IPV4_LOOPBACK in prefix for prefix in node.node_port_addresses)
        return self if loopback else replace(self, localhost_node_ports=False)
