"""Decides where HAProxy listens and keeps its files, from the operator's flags."""

from dataclasses import dataclass
from pathlib import Path

from vipwire_l7.haproxy.words import plain, quoted

FOLDER = "@folder@"
"""Stands for the folder of files in texts that are compared between folders."""
MAPS = ("apart", "shares", "exact", "expressions", "prefixes", "default", "listeners", "sites")
"""In the order in which they get entries: first what leads to a pool, last the sites that are looked for there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The operator's part. `folder` holds maps and certificates.

    `http` and `https` are addresses with ports (`*:80`), empty for nowhere. Clients may come through a balancer that
    tells who they are, by the PROXY protocol (`accept_proxy`) or by X-Forwarded-* headers (`trust_forwarded`).
    `access_log` is where requests are logged as JSON (`stdout`, or HAProxy's syntax for an address), empty for
    nowhere.
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
    """Whom HAProxy's workers run as, by name, and the folder that they see as all there is; empty for as we do."""

    def inner_bind(self, name: str) -> str:
        """Write where a frontend listens that only HAProxy itself connects to.

        Abstract sockets have no mode: any user of the machine could connect, and claim an address or a pool there.
        """
        folder = self.chroot or str(Path(self.socket).parent)
        owner = f" user {plain(self.user)}" if self.user else ""
        return f"{quoted(f'unix@{folder}/{name}')} mode 600{owner}"

    def inner_address(self, name: str) -> str:
        """Return the address of that frontend, as HAProxy's workers see files."""
        return f"unix@{'' if self.chroot else Path(self.socket).parent}/{name}"

    def map_file(self, name: str) -> str:
        """Return where a map is."""
        return f"{self.folder}/{name}.map"

    @property
    def certificate_list(self) -> str:
        """Return where the list of certificates is."""
        return f"{self.folder}/certificates.list"

    def certificate_file(self, name: str) -> str:
        """Return where a certificate is."""
        return f"{self.folder}/{name}"

    @property
    def https_suffix(self) -> str:
        """The port in a URL when HTTPS is at another one than usual, with its colon; else ""."""
        port = self.https.rpartition(":")[2]
        return "" if port == "443" else f":{port}"
