"""Settings of etcd: servers, TLS files, user, and the prefix of a cluster's keys, by kube-apiserver's flags."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from vipwire.errors import ConfigError

DEFAULT_PREFIX: Final = "/vipwire"
_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class EtcdServer:
    """A member's client URL, in parts."""

    host: str
    port: int
    secure: bool

    @property
    def target(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """The settings. Files are "" for none; a user has a password, in a file.

    `near` if the first of the servers is on this machine.
    """

    servers: tuple[EtcdServer, ...]
    cafile: str = ""
    certfile: str = ""
    keyfile: str = ""
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    near: bool = False

    def with_nearest_first(self, own: Collection[str]) -> "EtcdSettings":
        """Put the servers of this machine first. `own` are its addresses."""
        here = [each for each in self.servers if each.host in own or each.host == "localhost"]
        return replace(self, servers=tuple(dict.fromkeys((*here, *self.servers))), near=bool(here))

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.cafile, self.certfile, self.keyfile)))

    def __str__(self) -> str:
        return ", ".join(server.target for server in self.servers)


def read_settings(flags: dict[str, str]) -> EtcdSettings:
    """Parse the flags, by their names without leading dashes; raise ConfigError.

    `etcd-servers` is a list with commas; `etcd-password-file` holds the password of `etcd-username`.
    """
    servers = tuple(_parse_servers(flags.get("etcd-servers", "")))
    given = {name: flags.get(f"etcd-{name}", "") for name in ("cafile", "certfile", "keyfile")}
    if bool(given["certfile"]) != bool(given["keyfile"]):
        raise ConfigError("--etcd-certfile and --etcd-keyfile go together")
    if any(given.values()) and not all(server.secure for server in servers):
        raise ConfigError("--etcd-servers: TLS files are given, so every URL must begin with https://")
    for name, path in given.items():
        if path:
            _read_file(f"--etcd-{name}", path)
    prefix = flags.get("etcd-prefix") or DEFAULT_PREFIX
    if not prefix.startswith("/") or prefix == "/" or prefix.endswith("/"):
        raise ConfigError(f"--etcd-prefix: {prefix!r} must begin with a slash, and not end with one")
    user, file = flags.get("etcd-username", ""), flags.get("etcd-password-file", "")
    if bool(user) != bool(file):
        raise ConfigError("--etcd-username and --etcd-password-file go together")
    password = _read_file("--etcd-password-file", file).rstrip("\r\n") if file else ""
    return EtcdSettings(
        servers, given["cafile"], given["certfile"], given["keyfile"], prefix=prefix, user=user, password=password
    )


def _parse_servers(text: str) -> Iterator[EtcdServer]:
    for url in filter(None, (part.strip() for part in text.split(","))):
        parts = urlsplit(url)
        try:
            port = parts.port or _PORT
        except ValueError:
            port = 0
        if parts.scheme not in ("http", "https") or not parts.hostname or not port or parts.path not in ("", "/"):
            raise ConfigError(f"--etcd-servers: {url!r} is not a URL such as https://10.0.0.1:2379")
        yield EtcdServer(parts.hostname, port, parts.scheme == "https")
    if not text.strip(" ,"):
        raise ConfigError("--etcd-servers: name at least one server, such as https://10.0.0.1:2379")


def _read_file(flag: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"{flag} {path}: {why}") from error
