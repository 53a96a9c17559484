"""Addresses, prefixes and protocols as the kernel needs them: packed bytes in network order.

An address is 4 or 16 bytes, so its length tells the family. `ipaddress` objects take ten times the time and memory,
and a cluster may have 100,000 endpoints.
"""

import enum
import functools
import ipaddress
from typing import Final, NewType, Self, TypeAlias

from vipwire.model.text import whole_number
from vipwire.model.value import Value

Address = NewType("Address", bytes)
"""An IPv4 or IPv6 address: 4 or 16 bytes in network order."""
AddressPort: TypeAlias = tuple[Address, int]


class Family(enum.Enum):
    """An IP family. The value is Kubernetes' (`ipFamilies`, the `ip_family` label of metrics)."""

    __hash__ = object.__hash__  # enum's own hashes the name in Python at each look-up of a key

    IPV4 = "IPv4"
    IPV6 = "IPv6"

    @property
    def bits(self) -> int:
        return 32 if self is Family.IPV4 else 128


class Protocol(enum.IntEnum):
    """A layer 4 protocol of Services; the value is its IANA number."""

    TCP = 6
    UDP = 17
    SCTP = 132

    @property
    def label(self) -> str:
        """The lower-case name that kube-proxy hashes and nft prints: `tcp`, `udp`, `sctp`."""
        return self.name.lower()


def family_of(address: Address) -> Family:
    return Family.IPV4 if len(address) == 4 else Family.IPV6


def is_loopback(address: Address) -> bool:
    """Report whether an address is in 127.0.0.0/8 (RFC 1122) or ::1 (RFC 4291)."""
    return address[0] == 127 if len(address) == 4 else address == bytes(15) + b"\1"


def parse_address(text: str) -> Address:
    """Read an address as Kubernetes does; raise ValueError with the text otherwise.

    IPv4 octets may have leading zeros and are decimal (Go's old `ParseIPSloppy`). An IPv4-mapped IPv6 address is the
    IPv4 address.
    """
    if ":" not in text:
        octets = text.split(".")
        try:
            first, second, third, fourth = octets
            return Address(_OCTETS[first] + _OCTETS[second] + _OCTETS[third] + _OCTETS[fourth])
        except (KeyError, ValueError):
            return _parse_sloppy_address(text, octets)
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an IP address") from error
    if address.scope_id is not None:
        raise ValueError(f"{text!r} has a zone, which is not allowed for an address of a Service")
    mapped = address.ipv4_mapped
    return Address(mapped.packed if mapped else address.packed)


_OCTETS = {str(number): bytes((number,)) for number in range(256)}


def _parse_sloppy_address(text: str, octets: list[str]) -> Address:
    if len(octets) == 4 and all(part.isascii() and part.isdigit() and len(part) <= 8 for part in octets):
        values = [int(part) for part in octets]
        if max(values) <= 255:
            return Address(bytes(values))
    raise ValueError(f"{text!r} is not an IP address")


def format_address(address: Address) -> str:
    """Format an address in canonical form (RFC 5952 for IPv6)."""
    if len(address) == 4:
        return "{}.{}.{}.{}".format(*address)
    return str(ipaddress.IPv6Address(address))


def format_endpoint(address: Address, port: int) -> str:
    """Format as kube-proxy does: `10.0.0.1:80`, `[fd00::1]:80`."""
    text = format_address(address)
    return f"{text}:{port}" if len(address) == 4 else f"[{text}]:{port}"


class Prefix(Value, frozen=True, order=True):
    """A CIDR. The bits of `network` beyond `length` are zero."""

    network: Address
    length: int

    @property
    def family(self) -> Family:
        return family_of(self.network)

    @property
    def last(self) -> Address:
        return _last_address(self.network, self.length)

    def __contains__(self, address: Address) -> bool:
        return len(address) == len(self.network) and self.network <= address <= self.last

    def __str__(self) -> str:
        return f"{format_address(self.network)}/{self.length}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `address/length`; host bits are cleared, as in Go's ParseCIDR. Raise ValueError otherwise.

        An IPv4-mapped prefix becomes an IPv4 prefix: `::ffff:10.0.0.0/104` is a /8.
        """
        address_text, slash, length_text = text.partition("/")
        address = parse_address(address_text)
        bits = len(address) * 8
        written = whole_number(length_text, 0, 1 << 63)
        if not slash or written is None:
            raise ValueError(f"{text!r} is not a CIDR (address/length)")
        before = 96 if ":" in text and bits == 32 else 0
        length = written - before
        if not 0 <= length <= bits:
            raise ValueError(f"{text!r}: the length of this prefix is at least {before} and at most {before + bits}")
        shift = bits - length
        return cls(Address((int.from_bytes(address) >> shift << shift).to_bytes(bits // 8)), length)

    @classmethod
    def host(cls, address: Address) -> Self:
        return cls(address, len(address) * 8)


@functools.lru_cache(maxsize=1024)
def _last_address(network: Address, length: int) -> Address:
    host = (1 << (len(network) * 8 - length)) - 1
    return Address((int.from_bytes(network) | host).to_bytes(len(network)))


def add_brackets(host: str) -> str:
    """Return a host as written before a port: an IPv6 address in brackets (RFC 3986 3.2.2)."""
    return f"[{host}]" if ":" in host else host


_SPECIAL: Final = tuple(
    (Prefix.parse(text), name)
    for text, name in (
        ("0.0.0.0/32", "the unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("224.0.0.0/4", "a multicast address"),
        ("255.255.255.255/32", "the broadcast address"),
        ("::/128", "the unspecified address"),
        ("::1/128", "a loopback address"),
        ("ff00::/8", "a multicast address"),
    )
)
_LINK_LOCAL: Final = (Prefix.parse("169.254.0.0/16"), Prefix.parse("fe80::/10"))
SPECIAL_FIRST_BYTES: Final = frozenset((0, 127, 169, *range(224, 240), 0xFE, 0xFF))
"""First bytes of these addresses: a quick check that settles nearly all endpoints."""


def describe_special_use(address: Address, *, link_local: bool = True) -> str:
    """Return the purpose that an address is reserved for, "" for an ordinary one. `link_local`: those count.

    Each machine uses such an address itself, or many machines do, so no endpoint or external IP can have one. List:
    IANA's registries (RFC 6890), without class E (240.0.0.0/4), which clusters use for Pods.
    """
    if address[0] not in SPECIAL_FIRST_BYTES:
        return ""
    for prefix, name in _SPECIAL:
        if address in prefix:
            return name
    if link_local and any(address in prefix for prefix in _LINK_LOCAL):
        return "a link-local address"
    return ""
