"""Reads the credentials for the API server again before every request, because they are rotated.

Requests are few (a watch lasts minutes), so files need no cache. Only an exec plugin's answer is kept, until it
expires or the server refuses it.
"""

import asyncio
import base64
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from vipwire.errors import ConfigError
from vipwire.kube.access.kubeconfig import Exec
from vipwire.model.times import parse_time
from vipwire.model.value import Value

EXEC_TIMEOUT = 60.0
"""Seconds that an exec plugin may take."""
EXPIRY_MARGIN = 10.0
"""A credential is unused from this many seconds before its expiry."""


class Credential(Value, frozen=True):
    """The credentials of a request: the value of the header `Authorization`, a certificate and its key as PEM."""

    authorization: str = ""
    certificate: tuple[str, str] | None = None


class Credentials(Protocol):
    """A source of credentials."""

    async def current(self, now: float) -> Credential:
        """Return the credential valid at `now` (seconds since the epoch); raise ConfigError without one."""

    def discard(self) -> None:
        """Discard the kept credential: the server answered 401."""


class Fixed(Value, frozen=True):
    """A token, a user name with password, or nothing: never changes."""

    credential: Credential = Credential()

    async def current(self, now: float) -> Credential:  # noqa: ARG002 - it is the same at any time
        return self.credential

    def discard(self) -> None:
        """Discard nothing: the credential is fixed."""


class TokenFile(Value, frozen=True):
    """A token in a file that another program rotates: the kubelet, for a service account."""

    path: Path
    where: str

    async def current(self, now: float) -> Credential:  # noqa: ARG002 - the file is read each time
        try:
            token = self.path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.where}: cannot read {self.path}: {error}") from error
        if not token:
            raise ConfigError(f"{self.where}: {self.path} is empty: write a bearer token to the file")
        return Credential(f"Bearer {token}")

    def discard(self) -> None:
        """Discard nothing: the file is read each time."""


class _ExecStatus(Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class ExecPlugin:
    """A program that prints a credential: client.authentication.k8s.io/v1 and v1beta1 (KEP-541)."""

    def __init__(
        self, plugin: Exec, where: str, folder: Path, cluster: Mapping[str, object], environ: Mapping[str, str]
    ) -> None:
        self._plugin, self._where = plugin, where
        # The kubeconfig format resolves a command with a slash from the kubeconfig's folder, another in PATH.
        has_slash = "/" in plugin.command
        self._command = str(folder / plugin.command) if has_slash else plugin.command
        self._environ = dict(environ)
        self._environ.update((item.name, item.value) for item in plugin.env or ())
        self._environ["KUBERNETES_EXEC_INFO"] = self._encode_exec_info(cluster)
        self._kept: Credential | None = None
        self._expires: float | None = None
        self._lock = asyncio.Lock()

    def _encode_exec_info(self, cluster: Mapping[str, object]) -> str:
        spec: dict[str, object] = {"interactive": False}
        if self._plugin.provide_cluster_info:
            spec["cluster"] = dict(cluster)
        info = {"apiVersion": self._plugin.api_version, "kind": "ExecCredential", "spec": spec}
        return msgspec.json.encode(info).decode()

    async def current(self, now: float) -> Credential:
        """Return the kept credential, or run the program; concurrent requests run it once."""
        async with self._lock:
            expired = self._expires is not None and now >= self._expires - EXPIRY_MARGIN
            if self._kept is None or expired:
                self._kept, self._expires = self._parse_output(await self._run_plugin())
            return self._kept

    def discard(self) -> None:
        self._kept = None

    async def _run_plugin(self) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *(self._plugin.args or ()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=self._environ,
            )
        except OSError as error:
            raise ConfigError(f"{self._where}.command: cannot run {self._command}: {error}") from error
        try:
            async with asyncio.timeout(EXEC_TIMEOUT):
                output, errors = await process.communicate()
        except TimeoutError as error:
            message = f"{self._where}.command: {self._command} gave no credential in {EXEC_TIMEOUT:g} s"
            raise ConfigError(message) from error
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode:
            said = errors.decode(errors="replace").strip()[-500:]
            raise ConfigError(f"{self._where}.command: {self._command} exited {process.returncode}: {said}")
        return output

    def _parse_output(self, output: bytes) -> tuple[Credential, float | None]:
        try:
            return _read_answer(output, self._plugin.api_version)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{self._where}.command: unusable answer of {self._command}: {error}") from error


def _read_answer(output: bytes, version: str | None) -> tuple[Credential, float | None]:
    """Parse an ExecCredential into the credential and its expiry in seconds since the epoch; raise ValueError."""
    answer = msgspec.json.decode(output, type=_ExecCredential)
    status = answer.status
    if status is None or answer.kind != "ExecCredential":
        raise ValueError("not an ExecCredential with a status")
    if answer.api_version != version:
        raise ValueError(f"its apiVersion is {answer.api_version!r}, but vipwire requested {version!r}")
    certificate = None
    if status.client_certificate_data and status.client_key_data:
        certificate = (status.client_certificate_data, status.client_key_data)
    if not status.token and certificate is None:
        raise ValueError("neither a token nor a certificate with its key")
    expires = status.expiration_timestamp
    until = parse_time(expires).timestamp() if expires else None
    return Credential(f"Bearer {status.token}" if status.token else "", certificate), until


def encode_basic(username: str, password: str) -> Credential:
    """Build HTTP basic credentials (RFC 7617)."""
    return Credential("Basic " + base64.b64encode(f"{username}:{password}".encode()).decode())
