"""DNS names as bytes on the wire: labels with their lengths, lower case, a zero at the end.

The server looks up the bytes of a question in dictionaries without decoding them. Lengths are below 64 and so never
letters: `bytes.lower` works on a whole name.
"""

from collections.abc import Iterable, Iterator

import dns.exception
import dns.name

from vipwire.model.net import Address, format_address, parse_address

ROOT = b"\0"
REVERSE_4 = b"\7in-addr\4arpa\0"
REVERSE_6 = b"\3ip6\4arpa\0"
LONGEST = 255
"""Bytes of the longest name on the wire (RFC 1035 2.3.4)."""


def encode_name(labels: Iterable[str], suffix: bytes = ROOT) -> bytes:
    """Encode a name of labels (ASCII, 1 to 63 characters each) before a suffix."""
    parts = [label.encode("ascii").lower() for label in labels]
    return b"".join(bytes((len(part),)) + part for part in parts) + suffix


def parse_name(text: str) -> bytes:
    """Parse a textual name, absolute with or without a final dot. Raise ValueError."""
    try:
        return dns.name.from_text(text).canonicalize().to_wire() or ROOT
    except (dns.exception.DNSException, UnicodeError) as error:
        raise ValueError(f"{text[:80]!r} is not a DNS name: {error}") from error


def format_name(name: bytes) -> str:
    r"""Format a name as text, with the final dot; odd bytes as \DDD (RFC 1035 5.1)."""
    return dns.name.from_wire(name, 0)[0].to_text()


def parent_names(name: bytes) -> Iterator[bytes]:
    """Yield the names above a name, the nearest first, without the root."""
    place = name[0] + 1
    while name[place]:
        yield name[place:]
        place += name[place] + 1


def is_below(name: bytes, zone: bytes) -> bool:
    """Report whether a name is a zone's own or below it. Compares whole labels."""
    return name.endswith(zone) and (name == zone or zone in parent_names(name))


def encode_reverse_name(address: Address) -> bytes:
    """Encode the name of an address's PTR records (RFC 1035 3.5, RFC 3596 2.5)."""
    if len(address) == 4:
        return encode_name([str(octet) for octet in reversed(address)], REVERSE_4)
    return encode_name(reversed(address.hex()), REVERSE_6)


def format_dashed_address(address: Address) -> str:
    """Return the label of an endpoint without a hostname, as CoreDNS does: 10-0-0-1, fd00--1.

    A label neither begins nor ends with a hyphen (RFC 1123 2.1): `fd00:1::` is fd00-1--0.
    """
    label = format_address(address).replace(".", "-").replace(":", "-")
    return ("0" if label.startswith("-") else "") + label + ("0" if label.endswith("-") else "")


def parse_dashed_address(label: bytes) -> Address | None:
    text = label.decode("ascii", errors="replace")
    for between in (".", ":"):
        try:
            return parse_address(text.replace("-", between))
        except ValueError:
            continue
    return None
