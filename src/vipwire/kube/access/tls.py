"""TLS to the API server: its CA and the client's certificate, both of which may be rotated.

Verification follows Go's, because clusters' certificates are made for Go: every certificate of the CA file is trusted
by itself (no chain to a self-signed one needed), only subject alternative names count, and Python 3.13's stricter RFC
5280 checks are off, because the CAs of several installers fail them.
"""

import os
import ssl
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from vipwire.errors import ConfigError
from vipwire.model.value import Value

ClientCertificate: TypeAlias = tuple[str, str]
"""A certificate (with its chain) and its key as PEM texts."""

# X509_V_ERR_* of OpenSSL's x509_vfy.h.
_OUT_OF_DATE: Final = (9, 10)
_OTHER_NAME: Final = (62, 63, 64)


class ClientFiles(Value, frozen=True):
    """A client certificate and its key in files that another program (the kubelet) may rotate."""

    certificate: Path
    key: Path
    where: str

    def read(self) -> tuple[str, str]:
        """Read both as PEM texts; raise ConfigError."""
        certificate = read_text(self.certificate, f"{self.where}.client-certificate")
        return certificate, read_text(self.key, f"{self.where}.client-key")


class AuthorityFile(Value, frozen=True):
    """The CA certificates in a file that another program may rotate."""

    path: Path
    where: str

    def read(self) -> str:
        """Read the file as PEM text; raise ConfigError."""
        return read_text(self.path, self.where)


class Material(NamedTuple):
    """The content of a TLS context, as PEM texts. `authority` None means the system's CAs."""

    authority: str | None
    certificate: ClientCertificate | None


class Tls(Value, frozen=True):
    """The rules for verifying the server.

    `authority` is a file or PEM text, None for the system's CAs; `name` is the name in the server's certificate, None
    for its host. `authority_field` and `name_field` name file and field of both in errors.
    """

    authority: AuthorityFile | str | None = None
    verify: bool = True
    name: str | None = None
    authority_field: str = "certificate-authority"
    name_field: str = "tls-server-name"

    def material(self, certificate: ClientCertificate | None) -> Material:
        """Read the content of a context; raise ConfigError."""
        authority = self.authority
        return Material(authority.read() if isinstance(authority, AuthorityFile) else authority, certificate)

    def context(self, material: Material) -> ssl.SSLContext:
        """Build a TLS context; raise ConfigError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.hostname_checks_common_name = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if material.authority is None:
            context.load_default_certs()
        else:
            self._load_authority(context, material.authority)
        if material.certificate is not None:
            _load_certificate(context, material.certificate)
        return context

    def explain(self, error: ssl.SSLCertVerificationError) -> str:
        """Explain why the server's certificate is refused, and which field decides that."""
        if error.verify_code in _OTHER_NAME:
            return f"the server's certificate is for another name: {error.verify_message} (see {self.name_field})"
        if error.verify_code in _OUT_OF_DATE:
            return (
                f"a certificate of the server or of {self.authority_field} has expired or is not valid yet: "
                f"{error.verify_message}"
            )
        return f"no authority in {self.authority_field} has signed the server's certificate: {error.verify_message}"

    def _load_authority(self, context: ssl.SSLContext, text: str) -> None:
        try:
            # Comments between certificates may be in any language; OpenSSL skips them but needs ASCII.
            context.load_verify_locations(cadata=text.encode("ascii", "replace").decode())
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{self.authority_field}: no certificate in PEM form: {error}") from error


def read_text(path: Path, where: str) -> str:
    """Read a text file; `where` names the flag or field in the ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # the path may contain a NUL
        raise ConfigError(f"{where}: cannot read {path}: {error}") from error


def _load_certificate(context: ssl.SSLContext, certificate: ClientCertificate) -> None:
    """Load a certificate and its key. OpenSSL needs a file: a memfd, because a Pod may have no writable disk."""
    with open(os.memfd_create("client-certificate"), "w", encoding="utf-8") as file:  # noqa: PTH123 - of a descriptor
        file.write("\n".join(certificate))
        file.flush()
        try:
            # Without a password argument OpenSSL would ask on the terminal.
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}", password="")
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(f"client-certificate, client-key: not a pair in PEM form: {error}") from error
