"""A certificate authority for tests: valid and invalid certificates for servers and clients."""

import functools
import ssl
import subprocess
import tempfile
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A CA with files in a folder: `ca.crt`, and `NAME.crt` with `NAME.key` for each signed certificate."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self._name = folder, name
        self._run("req", "-x509", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}")

    @property
    def certificate(self) -> Path:
        return self.folder / f"{self._name}.crt"

    def sign(self, name: str, *alternatives: str, days: int = 2, client: bool = False) -> None:
        """Make `NAME.crt` and `NAME.key`; `alternatives` as in `DNS:api.test`."""
        lines = [f"subjectAltName={','.join(alternatives)}"] if alternatives else []
        lines += ["extendedKeyUsage=clientAuth"] if client else []
        (self.folder / f"{name}.ext").write_text("\n".join(lines))
        self._run("req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ("-CA", f"{self._name}.crt", "-CAkey", f"{self._name}.key", "-CAcreateserial")
        made = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", f"{name}.ext", "-days", str(days))
        self._run("x509", "-req", *made, *signer)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def server_context(self, name: str = "server", *, clients: bool = False) -> ssl.SSLContext:
        """Make a server's TLS context; with `clients` it requires a certificate of this CA."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.certificate))
        context.load_cert_chain(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
        return context

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@functools.cache
def authority() -> Authority:
    """Return a CA shared by all tests of a process, because making keys takes time.

    It has signed `server` (for 127.0.0.1, ::1 and api.test), `expired` (the same, out of date), `elsewhere` (for
    other.test only), and the clients `first` and `second`.
    """
    made = Authority(Path(tempfile.mkdtemp(prefix="authority-")))
    here = ("IP:127.0.0.1", "IP:::1", "DNS:api.test")
    made.sign("server", *here)
    made.sign("expired", *here, days=-1)
    made.sign("elsewhere", "DNS:other.test")
    made.sign("first", client=True)
    made.sign("second", client=True)
    return made
