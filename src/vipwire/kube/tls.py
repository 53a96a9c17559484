"""TLS as files and values say it: the server's authority, and the client's certificate, which may be rotated."""

import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vipwire.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """A client certificate and its key in files that somebody may rotate (the kubelet does)."""

    certificate: Path
    key: Path
    where: str

    def read(self) -> tuple[str, str]:
        """Read both as PEM texts; raise ConfigError."""
        certificate = read_text(self.certificate, f"{self.where}.client-certificate")
        return certificate, read_text(self.key, f"{self.where}.client-key")


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server is verified.

    `authority` is PEM text, None for the system's; `name` is what the server's certificate must
    say, None for its host.
    """

    authority: str | None = None
    verify: bool = True
    name: str | None = None

    def context(self, certificate: tuple[str, str] | None) -> ssl.SSLContext:
        """Make a TLS context, with a client certificate if there is one; raise ConfigError."""
        try:
            context = ssl.create_default_context(cadata=self.authority)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"certificate-authority: no certificate in PEM form: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _load_certificate(context, certificate)
        return context


def read_text(path: Path, where: str) -> str:
    """Read a text file; `where` names the flag or field that asked for it in the ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot read {path}: {error}") from error


def _load_certificate(context: ssl.SSLContext, certificate: tuple[str, str]) -> None:
    """Load a certificate and its key, by a file that only we can read and that is gone at once: OpenSSL wants one."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write("\n".join(certificate))
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"client-certificate, client-key: not a pair in PEM form: {error}") from error
