"""The words of rules that only iptables mode writes, as iptables-save prints them; see `modes.xtables.words`.

The kernel stores probabilities in 31 bits.
"""

from functools import lru_cache

from vipwire.model.net import Address, Family, format_address


def match_masked(family: Family, value: int, mask: int) -> str:
    """Match destinations whose bits under a mask equal those of `value`: `-d 0.0.0.1/0.0.0.3`."""
    size = family.bits // 8
    parts = (format_address(Address(number.to_bytes(size))) for number in (value, mask))
    return f"-d {'/'.join(parts)}"


@lru_cache(maxsize=4096)
def match_chance(options: int, weight: int = 1) -> str:
    """Match `weight` of `options` packets at random; "" if that is all.

    kube-proxy writes ten decimals, the kernel stores 31 bits, and iptables-save prints these.
    """
    if weight == options:
        return ""
    kept = round(float(f"{weight / options:0.10f}") * 0x80000000) / 0x80000000
    return f"-m statistic --mode random --probability {kept:.11f}"


def match_seen(family: Family, memory: str, seconds: int) -> str:
    return f"-m recent --rcheck --seconds {seconds} --reap --name {memory} {_whole_source(family)}"


def remember(family: Family, memory: str) -> str:
    """Remember that the client went to an endpoint; matches always."""
    return f"-m recent --set --name {memory} {_whole_source(family)}"


def _whole_source(family: Family) -> str:
    return f"--mask {format_address(Address(bytes([255] * (family.bits // 8))))} --rsource"


def count_packets(counter: str) -> str:
    """Count packets in an nfacct object; matches always."""
    return f"-m nfacct --nfacct-name {counter}"
