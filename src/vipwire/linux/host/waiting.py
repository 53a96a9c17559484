"""Lists the addresses and ports at which sockets of this machine listen."""

from vipwire.linux.netlink.sock_diag import BY_FAMILY, decode_socket, encode_list_waiting
from vipwire.linux.netlink.socket import NETLINK_SOCK_DIAG, NetlinkSocket
from vipwire.model.net import Family, Protocol, format_address


def read_listening_sockets() -> frozenset[tuple[str, int]]:
    """Return the addresses and ports for TCP and UDP. Raise OSError if the kernel lacks INET_DIAG."""
    with NetlinkSocket(NETLINK_SOCK_DIAG) as diag:
        return frozenset(
            (format_address(address), port)
            for family in Family
            for protocol in (Protocol.TCP, Protocol.UDP)
            for payload in diag.dump(BY_FAMILY, encode_list_waiting(family, protocol))
            for address, port in (decode_socket(bytes(payload)).place,)
        )
