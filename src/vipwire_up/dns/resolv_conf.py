"""Follows the servers in a resolv.conf: a new, changed, replaced or emptied file takes effect at once.

A machine's network often comes up after vipwire has started, and changes with Wi-Fi and VPN. While the file cannot be
read, the servers stay: some programs remove the file before they write the new one.
"""

from pathlib import Path

from vipwire.errors import ConfigError
from vipwire.file_io.file_watch import FileWatch
from vipwire.logging import log
from vipwire.process_lifecycle.supervision import Begun
from vipwire_up.dns.settings import Settings, drop_own_servers, read_resolv_conf
from vipwire_up.dns.upstream.exchange import Forwarder


class ResolvConf:
    """Keeps a forwarder's servers in step with a file."""

    def __init__(self, settings: Settings, path: Path, forwarder: Forwarder) -> None:
        self._settings, self._path, self._forwarder = settings, path, forwarder
        self._told = ""
        try:
            self._use_content(path.read_bytes())
        except OSError as error:
            self._warn_of_no_servers(error.strerror or "")

    async def run(self, _begun: Begun) -> None:
        async for content in FileWatch().yield_contents(self._path):
            if content is not None:
                self._use_content(content)

    def _use_content(self, content: bytes) -> None:
        try:
            found = read_resolv_conf(content.decode(errors="replace"), str(self._path))
        except ConfigError as error:
            log.warning("cannot use this resolv.conf: keeping the earlier servers", reason=error)
            return
        servers = drop_own_servers(self._settings, found)
        if servers != self._forwarder.servers:
            self._forwarder.set_servers(servers)
        ours = ",".join(str(each) for each in found if each not in servers)
        if not servers:
            self._warn_of_no_servers("the file names this server only" if ours else "the file names no server")
        elif self._told != (told := ",".join(map(str, servers))):
            self._told = told
            log.info("using the servers of resolv.conf for other names", file=self._path, servers=told, ignored=ours)

    def _warn_of_no_servers(self, reason: str) -> None:
        if self._told != reason:
            log.warning(
                "no upstream server: refusing queries for other names until this file names one",
                file=self._path,
                reason=reason,
            )
        self._told = reason
