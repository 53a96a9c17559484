"""Lists the addresses and ports at which sockets of this machine listen."""

from vipwire.linux.netlink.sock_diag import BY_FAMILY, list_waiting, read_socket
from vipwire.linux.netlink.socket import NETLINK_SOCK_DIAG, NetlinkSocket
from vipwire.model.net import Family, Protocol, format_address


def waiting_places() -> frozenset[tuple[str, int]]:
    """Return the addresses and ports for TCP and UDP. Raise OSError if the kernel lacks INET_DIAG."""
    with NetlinkSocket(NETLINK_SOCK_DIAG) as diag:
        return frozenset(
            (format_address(address), port)
            for family in Family
            for protocol in (Protocol.TCP, Protocol.UDP)
            for payload in diag.dump(BY_FAMILY, list_waiting(family, protocol))
            for address, port in (read_socket(bytes(payload)).place,)
        )
