"""Decides how to reach the API server, and with which credentials: kubeconfig, `--master`, or the Pod's own.

As in client-go: without kubeconfig and master, the program must run in a Pod; a master replaces the kubeconfig's
server and needs no kubeconfig; the proxy ignores $KUBECONFIG and ~/.kube/config, so that a node's Services do not
depend on a shell. Mistakes raise a `ConfigError` with file and field at start; files that break later fail their
request.

The HTTP proxy follows Go's `http.ProxyFromEnvironment`. Nodes often set HTTPS_PROXY for image pulls, with NO_PROXY
naming the cluster's networks as CIDRs: without CIDR support every in-cluster connection would use the proxy.
"""

import base64
import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from vipwire.errors import ConfigError
from vipwire.kube.access.credentials import Credential, Credentials, ExecPlugin, Fixed, TokenFile, encode_basic
from vipwire.kube.access.kubeconfig import Cluster, Selected, parse_kubeconfig
from vipwire.kube.access.tls import AuthorityFile, ClientCertificate, ClientFiles, Tls, read_text
from vipwire.model.value import Value

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SYSTEM = "the system's store, which --master alone relies on (a --kubeconfig can name another)"


class Access(Value, frozen=True):
    """How to reach an API server.

    `server` is its URL without a trailing slash, `proxy` an HTTP proxy's URL, `certificate` the client's: in files,
    or as PEM texts with the key second.
    """

    server: str
    credentials: Credentials
    tls: Tls | None = None
    proxy: str | None = None
    certificate: ClientFiles | ClientCertificate | None = None

    async def credential(self, now: float) -> Credential:
        """Return the credential for a request at `now` (seconds since the epoch); raise ConfigError."""
        credential = await self.credentials.current(now)
        if credential.certificate is not None or self.certificate is None:
            return credential
        ours = self.certificate
        return Credential(credential.authorization, ours.read() if isinstance(ours, ClientFiles) else ours)


def load_access(
    kubeconfig: Path | None = None,
    master: str | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    service_account: Path = SERVICE_ACCOUNT,
) -> Access:
    """Find out how to reach the API server; raise ConfigError if no way is configured.

    `environ` is read for the in-cluster address and for proxies, and passed to exec plugins.
    """
    if kubeconfig is not None and str(kubeconfig):
        if kubeconfig.parent == Path(FOLDER) and not kubeconfig.exists():
            raise ConfigError(f"--kubeconfig: {kubeconfig} does not exist; {WRITERS}")
        selected = parse_kubeconfig(read_text(kubeconfig, "--kubeconfig"), kubeconfig)
        return build_access(selected, master, environ)
    if master:
        server = _check_server(master, "--master")
        tls = Tls(authority_field=_SYSTEM, name_field="--master") if server.startswith("https:") else None
        return Access(server, Fixed(), tls=tls, proxy=find_environment_proxy(server, environ))
    return _read_service_account(environ, service_account)


def _read_service_account(environ: Mapping[str, str], account: Path) -> Access:
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "no API server: set --kubeconfig or --master; the environment has no KUBERNETES_SERVICE_HOST and "
            "KUBERNETES_SERVICE_PORT, as a Pod would (without a cluster, set --manifests)"
        )
    server = _check_server(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", "in-cluster")
    field = "in-cluster CA"
    authority = AuthorityFile(account / "ca.crt", field)
    tls = Tls(authority, authority_field=f"{field} {authority.path}", name_field="KUBERNETES_SERVICE_HOST")
    tls.context(tls.material(None))
    return Access(
        server, TokenFile(account / "token", "in-cluster token"), tls, find_environment_proxy(server, environ)
    )


def build_access(selected: Selected, master: str | None, environ: Mapping[str, str]) -> Access:
    """Build the access that kubeconfigs describe; `master`, `environ` as in `load_access`. Raise ConfigError."""
    cluster, where = selected.cluster, selected.file
    server = (
        _check_server(master, "--master") if master else _check_server(cluster.server, f"{where}: cluster.server")
    )
    authority = _find_authority(selected)
    tls = None
    if server.startswith("https:"):
        tls = Tls(
            authority,
            verify=not cluster.insecure_skip_tls_verify,
            name=cluster.tls_server_name or None,
            authority_field=f"{where}: cluster.certificate-authority{'-data' if isinstance(authority, str) else ''}",
            name_field=f"{where}: cluster.tls-server-name",
        )
    proxy = find_environment_proxy(server, environ)
    if cluster.proxy_url:
        proxy = check_proxy(cluster.proxy_url, f"{where}: cluster.proxy-url")
    certificate = _find_client_certificate(selected)
    if tls is not None:
        try:
            tls.context(tls.material(certificate.read() if isinstance(certificate, ClientFiles) else certificate))
        except ConfigError as error:
            named = any(file in str(error) for file in (where, selected.user_file))
            raise ConfigError(str(error) if named else f"{selected.user_file}: user: {error}") from error
    info = _build_cluster_info(
        server, cluster, authority.read() if isinstance(authority, AuthorityFile) else authority
    )
    credentials = _build_credentials(selected, info, environ)
    return Access(server, credentials, tls, proxy, certificate)


def _build_credentials(selected: Selected, cluster: Mapping[str, object], environ: Mapping[str, str]) -> Credentials:
    """Choose credentials as client-go does: a token file before a token, both before the rest."""
    user, where, folder = selected.user, f"{selected.user_file}: user", Path(selected.user_file).parent
    if user.token_file:
        return TokenFile(folder / user.token_file, f"{where}.tokenFile")
    if user.token:
        return Fixed(Credential(f"Bearer {user.token}"))
    if user.exec is not None:
        return ExecPlugin(user.exec, f"{where}.exec", folder, cluster, environ)
    return Fixed(encode_basic(user.username, user.password or "")) if user.username else Fixed()


def _find_authority(selected: Selected) -> AuthorityFile | str | None:
    """Find the server's CA: in the kubeconfig, or in a file, which is read again for every request."""
    cluster, field = selected.cluster, "cluster.certificate-authority"
    if cluster.certificate_authority_data or not cluster.certificate_authority:
        return _decode_text(selected.file, cluster.certificate_authority_data, None, field)
    return AuthorityFile(Path(selected.file).parent / cluster.certificate_authority, f"{selected.file}: {field}")


def _find_client_certificate(selected: Selected) -> ClientFiles | ClientCertificate | None:
    """Find the client's certificate: in files, which are read again for every request, or in the kubeconfig."""
    user, where = selected.user, selected.user_file
    if not user.client_certificate and not user.client_certificate_data:
        return None
    if user.client_certificate_data or user.client_key_data:
        certificate = _decode_text(
            where, user.client_certificate_data, user.client_certificate, "user.client-certificate"
        )
        return certificate or "", _decode_text(where, user.client_key_data, user.client_key, "user.client-key") or ""
    folder = Path(where).parent
    files = folder / (user.client_certificate or ""), folder / (user.client_key or "")
    return ClientFiles(*files, f"{where}: user")


def _build_cluster_info(server: str, cluster: Cluster, authority: str | None) -> dict[str, object]:
    info: dict[str, object] = {"server": server}
    if cluster.tls_server_name:
        info["tls-server-name"] = cluster.tls_server_name
    if cluster.insecure_skip_tls_verify:
        info["insecure-skip-tls-verify"] = True
    if authority:
        info["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    if cluster.proxy_url:
        info["proxy-url"] = cluster.proxy_url
    return info


def _decode_text(where: str, data: str | None, file: str | None, field: str) -> str | None:
    """Read PEM text from a field ending in `-data`, which has priority, or from the file that another field names."""
    if data:
        try:
            return base64.b64decode(data, validate=True).decode()
        except ValueError as error:
            raise ConfigError(f"{where}: {field}-data: is not base64 of a PEM text: {error}") from error
    return read_text(Path(where).parent / file, f"{where}: {field}") if file else None


def _check_server(text: str, where: str) -> str:
    """Check a server's URL; `host:port` alone means http, as in client-go."""
    full = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urlsplit(full)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not text or not valid:
        raise ConfigError(f"{where}: {text!r} is not the URL of an API server (allowed: https://host:port)")
    return full


FOLDER: Final = "/var/lib/vipwire"
"""The folder of the kubeconfig of `vipwire up`, unless $VIPWIRE_DATA_DIR names another."""
WRITERS: Final = "start `vipwire up` or `vipwire join` on this machine, which write it"


def check_proxy(url: str, where: str) -> str:
    """Check a proxy's URL. `where` is the field in the ConfigError. As in Go, `host:port` means http."""
    full = url if "://" in url else f"http://{url}"
    parts = urlsplit(full)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{where}: {url!r} is not a supported proxy (allowed: http://host:port, https://...)")
    return full


def find_environment_proxy(server: str, environ: Mapping[str, str]) -> str | None:
    """Find the proxy for a server's URL in HTTPS_PROXY, HTTP_PROXY and NO_PROXY (or in lower case)."""
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name)
    if not proxy or not parts.hostname:
        return None
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if _is_excluded(parts.hostname, parts.port, excluded):
        return None
    return check_proxy(proxy, f"environment variable {name.upper()}")


def _is_excluded(host: str, port: int | None, excluded: str) -> bool:
    address = _parse_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _matches_exclusion(entry.strip().lower(), host.lower(), address, port) for entry in excluded.split(",")
    )


def _matches_exclusion(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int | None
) -> bool:
    if not entry or entry == "*":
        return entry == "*"
    if address is not None and "/" in entry:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and re.fullmatch("[0-9]{1,5}", number) and _parse_address(entry) is None:
        if int(number) != port:
            return False
        entry = name.strip("[]")
    if address is not None:
        return _parse_address(entry) == address
    suffix = entry.removeprefix("*")
    return host.endswith(suffix) if suffix.startswith(".") else host == suffix or host.endswith(f".{suffix}")


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
