"""Names the objects of userspace mode for people."""

from vipwire.model.net import Family
from vipwire.modes.userspace.names import Chain, Front, Key, Rule


def describe(family: Family, key: Key) -> str:
    """Name an object: `listener default/web:http cluster IP 10.96.0.1:80/tcp`, `iptables nat rule KUBE-… -d …`."""
    tool = "iptables" if family is Family.IPV4 else "ip6tables"
    match key:
        case Front(front):
            return f"listener {front}"
        case Chain(table, chain):
            return f"{tool} {table} chain {chain}"
        case Rule(table, chain, words, front):
            leads = f" (to the listener {front})" if front else ""
            return f"{tool} {table} rule {chain} {words}{leads}"
