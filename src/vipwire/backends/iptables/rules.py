"""The words of rules, exactly as iptables-save prints them: what is written and what is read is then the same text.

iptables-save puts `! -s -d ! -i -p` first, then the matches in the order in which they were given, then the target;
addresses have their length, marks are hexadecimal, and chances are what the kernel keeps: 31 bits.
"""

from functools import lru_cache

from vipwire.model.net import Address, Family, Prefix, Protocol, format_address
from vipwire.plan.node import PodBridge, PodInterfaces, PodPrefixes, PodTraffic

LOCAL_DESTINATION = "-m addrtype --dst-type LOCAL"
LOCAL_SOURCE = "-m addrtype --src-type LOCAL"
LOOPBACK = {Family.IPV4: "127.0.0.0/8", Family.IPV6: "::1/128"}


def host(address: Address) -> str:
    """Write one address: `10.0.0.1/32`."""
    return f"{format_address(address)}/{len(address) * 8}"


def masked(family: Family, value: int, mask: int) -> str:
    """Match destinations whose bits under a mask are those of `value`: `-d 0.0.0.1/0.0.0.3`."""
    size = family.bits // 8
    parts = (format_address(Address(number.to_bytes(size))) for number in (value, mask))
    return f"-d {'/'.join(parts)}"


def comment(text: str) -> str:
    """Write a comment; it holds a blank or a slash, so that iptables-save quotes it."""
    return f'-m comment --comment "{text}"'


def rule(*words: str) -> str:
    """Join the words of a rule that are there."""
    return " ".join(word for word in words if word)


def served(protocol: Protocol, port: int | str, note: str, *matches: str, address: Address | None = None) -> str:
    """Write the matches of a frontend: `-d 10.0.0.1/32 -p tcp -m comment … -m tcp --dport 80`."""
    name = protocol.label
    where = f"-d {host(address)}" if address is not None else ""
    return rule(where, f"-p {name}", comment(note), *matches, f"-m {name} --dport {port}")


def ports(first: int, last: int) -> str:
    """Write a range of ports for `--dport`, `last` in it."""
    return str(first) if first == last else f"{first}:{last}"


@lru_cache(maxsize=4096)
def chance(options: int, weight: int = 1) -> str:
    """Match `weight` in so many packets, at random; "" where that is all of them.

    kube-proxy writes ten decimals, the kernel keeps 31 bits of that, and iptables-save prints these.
    """
    if weight == options:
        return ""
    kept = round(float(f"{weight / options:0.10f}") * 0x80000000) / 0x80000000
    return f"-m statistic --mode random --probability {kept:.11f}"


def seen(family: Family, memory: str, seconds: int) -> str:
    """Match clients that went to an endpoint so recently."""
    return f"-m recent --rcheck --seconds {seconds} --reap --name {memory} {_whole_source(family)}"


def remember(family: Family, memory: str) -> str:
    """Remember that the client went to an endpoint; matches always."""
    return f"-m recent --set --name {memory} {_whole_source(family)}"


def _whole_source(family: Family) -> str:
    return f"--mask {format_address(Address(bytes([255] * (family.bits // 8))))} --rsource"


def from_pod(traffic: PodTraffic | None) -> tuple[str, ...]:
    """Match what comes from a Pod, one alternative each."""
    match traffic:
        case PodPrefixes(prefixes):
            return tuple(f"-s {prefix}" for prefix in prefixes)
        case PodBridge(interface):
            return (f"-i {interface}",)
        case PodInterfaces(prefix):
            return (f"-i {prefix}+",)
    return ()


def counted(counter: str) -> str:
    """Count packets in an nfacct object; matches always."""
    return f"-m nfacct --nfacct-name {counter}"


REFUSALS = {Family.IPV4: "icmp-port-unreachable", Family.IPV6: "icmp6-port-unreachable"}


def refuse(family: Family, protocol: Protocol | None) -> str:
    """Tell the client that nobody answers; for TCP the rule must match `-p tcp`.

    kube-proxy answers TCP with ICMP too, which Linux ignores inside connect(): its clients hear of it a second later.
    """
    return f"-j REJECT --reject-with {'tcp-reset' if protocol is Protocol.TCP else REFUSALS[family]}"


def in_prefix(prefix: Prefix) -> str:
    """Match destinations in a prefix; nothing where that is everywhere."""
    return f"-d {prefix}" if prefix.length else ""
