"""Writes the configuration of BIRD 2 for a set of routes. Pure.

The routes are static ones that lead nowhere: BIRD tells them to its peers, and nothing of it reaches this machine's
kernel, since no protocol kernel is configured. Nothing is learned from the peers either.
"""

from collections.abc import Iterable, Iterator

from vipwire_up.bgp.settings import BgpSettings, Peer


def render(settings: BgpSettings, router_id: str, routes: Iterable[str]) -> str:
    """Write the file."""
    routes = tuple(routes)
    lines = [
        "# written by vipwire; changes are lost",
        f"router id {settings.router_id or router_id};",
        "protocol device {}",
        *_static("ipv4", 32, (each for each in routes if ":" not in each)),
        *_static("ipv6", 128, (each for each in routes if ":" in each)),
        *(line for number, peer in enumerate(settings.peers, 1) for line in _peer(settings.number, number, peer)),
    ]
    return "\n".join(lines) + "\n"


def _static(family: str, length: int, routes: Iterable[str]) -> Iterator[str]:
    yield f"protocol static vipwire_{family} {{"
    yield f"  {family};"
    yield from (f"  route {each}/{length} blackhole;" for each in routes)
    yield "}"


def _peer(ours: int, number: int, peer: Peer) -> Iterator[str]:
    yield f"protocol bgp vipwire_peer_{number} {{"
    yield f"  local as {ours};"
    yield f"  neighbor {peer.address} as {peer.number};"
    yield "  hold time 9;"
    yield "  keepalive time 3;"
    yield "  connect retry time 5;"
    yield "  error wait time 1, 30;"
    for family in ("ipv4", "ipv6"):
        yield f'  {family} {{ import none; export where proto = "vipwire_{family}"; next hop self; }};'
    yield "}"
