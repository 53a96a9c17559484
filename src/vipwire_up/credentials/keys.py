"""The credentials of a data directory while `vipwire up` runs: renewed, reread and revoked without a restart.

pki/            certificates are checked every minute of the clock, which may jump, and renewed as ca.py says; new
                connections get the new one
*.kubeconfig    written again when their content changes
tokens.csv      read again after a change; a broken or missing file changes nothing
revoked         refused certificates and users (revocation.py); read again likewise
"""

import asyncio
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from vipwire.errors import ConfigError
from vipwire.file_io.file_watch import FileWatch
from vipwire.logging import log
from vipwire_up.api.serving.authorization import User
from vipwire_up.credentials.ca import LIFE, Authority
from vipwire_up.credentials.identity import Access, Withdrawn, load_tokens, parse_tokens, write_kubeconfigs
from vipwire_up.credentials.revocation import load_revoked, parse_revoked

RENEW_EVERY: Final = timedelta(minutes=5)
"""Less than a tenth of the shortest life, by which certificates are valid before they are made."""
_LOOK_SECONDS: Final = 2.0
TOKENS: Final = "tokens.csv"
REVOKED: Final = "revoked"


class Keys:
    """The credentials of a folder, created if missing. Raise ConfigError for unusable files.

    `life` is the validity of certificates of servers and machines.
    """

    def __init__(
        self, folder: Path, names: Iterable[str], clock: Callable[[], datetime], life: timedelta = LIFE
    ) -> None:
        self._folder, self._names, self._clock, self._life = folder, tuple(names), clock, life
        revoked = load_revoked(folder / REVOKED)
        self.access = Access({}, revoked)
        authority = self.load_authority()
        pair = authority.issue_server_certificate(self._names)
        self.tls = authority.build_server_context(pair)
        self._shown = _read_certificates(authority, pair.certificate)
        self.access.set_own_tokens(load_tokens(folder / TOKENS))
        self._url = ""
        self._after_changes: list[Callable[[], None]] = []
        self._known = {name: _read_file(folder / name) for name in (TOKENS, REVOKED)}

    def call_after_changes(self, call: Callable[[], None]) -> None:
        """Call after each change of the tokens or of the file `revoked`."""
        self._after_changes.append(call)

    def write_kubeconfigs(self, url: str) -> Path:
        """Write a kubeconfig for each role with the server's URL; return the admin's path."""
        self._url = url
        return write_kubeconfigs(self._folder, self.load_authority(), url)

    async def run(self) -> None:
        files = FileWatch()
        async with asyncio.TaskGroup() as tasks:
            for name in (TOKENS, REVOKED):
                tasks.create_task(self._follow_file(files, self._folder / name))
            renewed = self._clock()
            while True:
                await asyncio.sleep(_LOOK_SECONDS)  # short: after a jump of the clock, clients refuse the certificate
                if abs(self._clock() - renewed) >= RENEW_EVERY:
                    renewed = self._clock()
                    await self.renew_server_certificate()

    async def _follow_file(self, files: FileWatch, path: Path) -> None:
        async for _ in files.yield_contents(path):
            if self.read_credential_files():
                await self.renew_server_certificate()

    def read_credential_files(self) -> bool:
        """Reread the changed files; report whether any changed. They are small."""
        before = dict(self._known)
        for name, take in ((TOKENS, self._set_tokens), (REVOKED, self._set_revoked)):
            path = self._folder / name
            content = _read_file(path)
            if content is None or content == self._known.get(name):
                continue
            self._known[name] = content
            try:
                take(path, content)
            except ConfigError as error:
                log.error("cannot use a credentials file; its earlier content applies", reason=error)
            else:
                log.info("read a credentials file again", file=path)
        if changed := self._known != before:
            self._tell_changed()
        return changed

    async def change_names(self, names: Iterable[str]) -> None:
        """Make the server's certificate valid for these names; new connections get it."""
        self._names = tuple(names)
        await self.renew_server_certificate()

    async def renew_server_certificate(self) -> None:
        try:
            await asyncio.to_thread(self._renew_certificates)
        except (ConfigError, OSError) as error:
            log.error("cannot renew certificates", reason=error)

    def _renew_certificates(self) -> None:
        authority = self.load_authority()
        pair = authority.issue_server_certificate(self._names)
        if (now := _read_certificates(authority, pair.certificate)) != self._shown:
            self.tls.load_cert_chain(pair.certificate, pair.key)
            self.tls.load_verify_locations(authority.pair.certificate)
            self._shown = now
            log.info("renewed the certificate for new connections", file=pair.certificate)
        if self._url:
            write_kubeconfigs(self._folder, authority, self._url)

    def load_authority(self) -> Authority:
        serials = self.access.revoked.serials | self.access.withdrawn.others.serials
        return Authority(self._folder / "pki", self._clock(), serials, self._life)

    def set_shared_credentials(self, tokens: Mapping[bytes, User], withdrawn: Withdrawn) -> None:
        if self.access.set_shared_credentials(tokens, withdrawn):
            self._tell_changed()

    def _tell_changed(self) -> None:
        for call in self._after_changes:
            call()

    def _set_tokens(self, path: Path, content: bytes) -> None:
        self.access.set_own_tokens(parse_tokens(path, content))

    def _set_revoked(self, path: Path, content: bytes) -> None:
        self.access.revoked = parse_revoked(path, content)


def _read_certificates(authority: Authority, certificate: Path) -> tuple[bytes | None, ...]:
    return _read_file(authority.pair.certificate), _read_file(certificate)


def _read_file(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


_SECRET: Final = ("pki/*.key", "*.kubeconfig", "tokens.csv", "store.db*")
_PUBLIC: Final = (".", "pki", "pki/*.crt", "revoked", "member.json")


def warn_of_loose_modes(folder: Path) -> None:
    """Log a warning for each secret that other users can read, and for each file and folder that they can change."""
    for patterns, bits, remedy in ((_SECRET, 0o077, "go-rwx"), (_PUBLIC, 0o022, "go-w")):
        for path in (folder / each for pattern in patterns for each in sorted(_find_files(folder, pattern))):
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except OSError:  # the file is gone, or a dangling link: the reader reports it
                continue
            if mode & bits:
                what = "change" if mode & 0o022 else "read"
                log.warning(
                    f"other users can {what} this file: set its mode", file=path, mode=f"{mode:04o}", chmod=remedy
                )


def _find_files(folder: Path, pattern: str) -> list[Path]:
    return [folder / pattern] if "*" not in pattern else list(folder.glob(pattern))
