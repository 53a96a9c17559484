"""The words of rules as iptables-save prints them, so that written and observed text are equal.

iptables-save puts `! -s -d ! -i -p` first, then the matches in the order of insertion, then the target; addresses
have a prefix length, marks are hexadecimal.
"""

from typing import Final

from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.plan.node import PodBridge, PodInterfaces, PodPrefixes, PodTraffic

LOCAL_DESTINATION: Final = "-m addrtype --dst-type LOCAL"
LOCAL_SOURCE: Final = "-m addrtype --src-type LOCAL"
NEW: Final = "-m conntrack --ctstate NEW"
ASKING: Final = "-m conntrack --ctdir ORIGINAL"
"""Matches packets of the connection's original direction."""
ANSWERING: Final = "-m conntrack --ctdir REPLY"
UNTRANSLATED: Final = "-m conntrack ! --ctstate DNAT"
LOOPBACK: Final = {Family.IPV4: Prefix.parse("127.0.0.0/8"), Family.IPV6: Prefix.parse("::1/128")}
RESTORE: Final = {Family.IPV4: "iptables-restore --noflush", Family.IPV6: "ip6tables-restore --noflush"}
"""The program that reads rules as text and leaves unnamed chains alone."""
_UNREACHABLE: Final = {Family.IPV4: "icmp-port-unreachable", Family.IPV6: "icmp6-port-unreachable"}


def join_rule(*words: str) -> str:
    return " ".join(word for word in words if word)


def match_comment(text: str) -> str:
    """Write a comment; it must hold a space or a slash, so that iptables-save quotes it."""
    return f'-m comment --comment "{text}"'


def format_host(address: Address) -> str:
    return f"{format_address(address)}/{len(address) * 8}"


def match_destination(address: Address | None) -> str:
    """Match a destination; "" if None."""
    return "" if address is None else f"-d {format_host(address)}"


def format_prefix(prefix: Prefix) -> str:
    """Match destinations in a prefix; "" for all destinations."""
    return f"-d {prefix}" if prefix.length else ""


def format_ports(first: int, last: int) -> str:
    """Write a range of ports for `--dport`, `last` included."""
    return str(first) if first == last else f"{first}:{last}"


def match_service_port(
    protocol: Protocol, port: int | str, note: str, *matches: str, address: Address | None = None, source: str = ""
) -> str:
    """Write the matches of a frontend: `-d 10.0.0.1/32 -p tcp -m comment … -m tcp --dport 80`.

    `source` is a match that stands first, `matches` stand before the port.
    """
    name = protocol.label
    return join_rule(
        source, match_destination(address), f"-p {name}", match_comment(note), *matches, f"-m {name} --dport {port}"
    )


def match_pod_traffic(traffic: PodTraffic | None) -> tuple[str, ...]:
    """Match packets from Pods, one alternative each; empty if vipwire cannot tell Pods."""
    match traffic:
        case PodPrefixes(prefixes):
            return tuple(f"-s {prefix}" for prefix in prefixes)
        case PodBridge(interface):
            return (f"-i {interface}",)
        case PodInterfaces(prefix):
            return (f"-i {prefix}+",)
    return ()


def compute_own_mask(mark: int) -> str:
    """Write a mark that is its own mask: `0x4000/0x4000`."""
    return f"{mark:#x}/{mark:#x}"


def write_reject_target(family: Family, protocol: Protocol | None) -> str:
    """Refuse the client; for TCP the rule must match `-p tcp`.

    kube-proxy answers TCP with ICMP, which Linux ignores inside connect(), so its clients fail a second later.
    """
    return f"-j REJECT --reject-with {'tcp-reset' if protocol is Protocol.TCP else _UNREACHABLE[family]}"
