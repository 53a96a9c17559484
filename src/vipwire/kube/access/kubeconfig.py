"""Parses a kubeconfig into the cluster and user of its current context.

Several files form one kubeconfig: the first file with a current context, or with an entry of a name, counts, and
relative paths start at the entry's own file. Every error is a `ConfigError` with file, field and allowed values.
Fields for terminals (preferences, extensions, an exec plugin's install hint) are ignored. The removed `auth-provider`
is an error, because without it requests would be anonymous.

Format: kubeconfig (v1), https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct, field

from vipwire.errors import ConfigError, DecodeError

EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class Cluster(Struct, frozen=True, rename="kebab"):
    """`clusters[].cluster`."""

    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class EnvVar(Struct, frozen=True):
    """One of an exec plugin's `env`."""

    name: str
    value: str


class Exec(Struct, frozen=True, rename="camel"):
    """`users[].user.exec`: a program that prints a credential."""

    command: str
    api_version: str | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None
    provide_cluster_info: bool | None = None


class User(Struct, frozen=True, rename="kebab"):
    """`users[].user`."""

    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    exec: Exec | None = None
    auth_provider: dict[str, object] | None = None


class Context(Struct, frozen=True):
    """`contexts[].context`."""

    cluster: str | None = None
    user: str | None = None


class _NamedCluster(Struct, frozen=True):
    name: str
    cluster: Cluster | None = None


class _NamedUser(Struct, frozen=True):
    name: str
    user: User | None = None


class _NamedContext(Struct, frozen=True):
    name: str
    context: Context | None = None


class _Config(Struct, frozen=True, rename="kebab"):
    current_context: str | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None
    contexts: tuple[_NamedContext, ...] | None = None


class Selected(Struct, frozen=True):
    """The cluster and user of the current context, each with its file: relative paths start in that file's folder."""

    cluster: Cluster
    user: User
    file: str
    user_file: str


_Named = TypeVar("_Named", _NamedCluster, _NamedUser, _NamedContext)


def parse_kubeconfig(text: str, file: Path) -> Selected:
    """Parse a kubeconfig's current context; `file` names it in errors and is the base of relative paths.

    Raises ConfigError.
    """
    return parse_kubeconfigs(((text, file),))


def parse_kubeconfigs(texts: Iterable[tuple[str, Path]]) -> Selected:
    """Parse the current context of several kubeconfigs, each a text and its file. Raises ConfigError."""
    configs = [(_parse_config(text, file), str(file)) for text, file in texts]
    where = ", ".join(file for _, file in configs)
    name = next((config.current_context for config, _ in configs if config.current_context), None)
    if not name:
        raise ConfigError(f"{where}: current-context: is missing: set the context")
    contexts = [(item, file) for config, file in configs for item in config.contexts or ()]
    clusters = [(item, file) for config, file in configs for item in config.clusters or ()]
    users = [(item, file) for config, file in configs for item in config.users or ()]
    found, context_file = _find_named(contexts, name, f"{where}: current-context", "contexts")
    context, path = found.context or Context(), f"contexts[{name}].context"
    if not context.cluster:
        raise ConfigError(f"{context_file}: {path}.cluster: is missing")
    cluster, file = _find_named(clusters, context.cluster, f"{where}: {path}.cluster", "clusters")
    user, user_file = User(), file
    if context.user:
        named, user_file = _find_named(users, context.user, f"{where}: {path}.user", "users")
        user = named.user or User()
    selected = Selected(cluster.cluster or Cluster(), user, file, user_file)
    _check_user(user, f"{user_file}: users[{context.user}].user")
    _check_cluster(selected.cluster, f"{file}: clusters[{context.cluster}].cluster")
    return selected


def _parse_config(text: str, file: Path) -> _Config:
    from vipwire.config.yaml_values import load_yaml  # noqa: PLC0415  # heavy, and a Pod in a cluster reads no YAML

    try:
        document = load_yaml(text)
    except DecodeError as error:
        raise ConfigError(f"{file}: is neither YAML nor JSON: {error}") from error
    try:
        return msgspec.convert({} if document is None else document, _Config)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        field_path = path.rstrip("`").removeprefix(".")
        raise ConfigError(f"{file}: {field_path or 'the whole file'}: {message}") from error
    except ValueError as error:  # half of a surrogate pair
        raise ConfigError(f"{file}: not a kubeconfig: {error}") from error


def _find_named(items: Sequence[tuple[_Named, str]], name: str, where: str, group: str) -> tuple[_Named, str]:
    for item, file in items:
        if item.name == name:
            return item, file
    known = ", ".join(dict.fromkeys(item.name for item, _ in items)) or "none"
    raise ConfigError(f"{where}: {name!r} is not among the {group} ({known})")


def _check_user(user: User, path: str) -> None:
    if user.auth_provider is not None:
        raise ConfigError(f"{path}.auth-provider: was removed from Kubernetes; use exec, a token or a certificate")
    _check_text(user, path)
    for certificate, key, name in (
        (user.client_certificate_data, user.client_key_data, "-data"),
        (user.client_certificate, user.client_key, ""),
    ):
        if bool(certificate) != bool(key) and not (user.client_certificate_data and user.client_key):
            missing = "client-key" if certificate else "client-certificate"
            raise ConfigError(f"{path}.{missing}{name}: is missing; a certificate and its key belong together")
    if user.exec is None:
        return
    if user.exec.api_version not in EXEC_VERSIONS:
        allowed = " or ".join(EXEC_VERSIONS)
        raise ConfigError(f"{path}.exec.apiVersion: {user.exec.api_version!r} is not supported (allowed: {allowed})")
    if not user.exec.command:
        raise ConfigError(f"{path}.exec.command: is empty")


def _check_text(said: Cluster | User, path: str) -> None:
    try:
        msgspec.json.encode(said)
    except ValueError as error:  # half of a surrogate pair
        raise ConfigError(f"{path}: is not Unicode: {error}") from error


def _check_cluster(cluster: Cluster, path: str) -> None:
    _check_text(cluster, path)
    if cluster.insecure_skip_tls_verify and (cluster.certificate_authority or cluster.certificate_authority_data):
        raise ConfigError(f"{path}.insecure-skip-tls-verify: cannot be true together with a certificate-authority")
