"""The addresses and files of HAProxy, from the operator's flags."""

from dataclasses import dataclass
from pathlib import Path

from vipwire_l7.haproxy.words import write_plain, write_quoted

FOLDER = "@folder@"
"""Stands for the folder of files in texts that are compared between folders."""
MAPS = ("apart", "shares", "exact", "expressions", "prefixes", "default", "listeners", "sites")
"""The maps in the order of their new entries: first those that lead to a pool, last the sites."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The operator's part. `folder` holds maps and certificates.

    `http` and `https` are addresses with ports (`*:80`), empty for none. Behind a load balancer, HAProxy takes the
    client's address from the PROXY protocol (`accept_proxy`) or from X-Forwarded-* headers (`trust_forwarded`).
    `access_log` is the destination of requests as JSON (`stdout`, or an address in HAProxy's syntax), empty for none.
    """

    folder: str
    socket: str
    http: str = "*:80"
    https: str = "*:443"
    accept_proxy: bool = False
    trust_forwarded: bool = False
    access_log: str = ""
    cookie_key: str = "vipwire"
    threads: int = 0
    connections: int = 0
    user: str = ""
    group: str = ""
    chroot: str = ""
    """User, group and root folder of HAProxy's workers; empty for the same as this process."""

    def write_inner_bind(self, name: str) -> str:
        """Write the `bind` of a frontend to which only HAProxy itself connects.

        Abstract sockets have no mode: any user of the machine could connect, and claim an address or a pool there.
        """
        folder = self.chroot or str(Path(self.socket).parent)
        owner = f" user {write_plain(self.user)}" if self.user else ""
        return f"{write_quoted(f'unix@{folder}/{name}')} mode 600{owner}"

    def get_inner_address(self, name: str) -> str:
        """Return the address of that frontend, in the workers' root folder."""
        return f"unix@{'' if self.chroot else Path(self.socket).parent}/{name}"

    def get_map_path(self, name: str) -> str:
        return f"{self.folder}/{name}.map"

    @property
    def certificate_list(self) -> str:
        return f"{self.folder}/certificates.list"

    def get_path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    @property
    def https_suffix(self) -> str:
        """The port in an HTTPS URL, with its colon; "" for 443."""
        port = self.https.rpartition(":")[2]
        return "" if port == "443" else f":{port}"
