"""The work of `vipwire join`, `vipwire leave` and `vipwire token`, from the values of their flags."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from vipwire.config.flags import build_config
from vipwire.config.kinds import parse_duration
from vipwire.config.sections import Logging
from vipwire.errors import ConfigError, VipwireError
from vipwire.kube.access.access import Access
from vipwire.linux.host.kernel import require_net_admin
from vipwire.logging import log
from vipwire.process_lifecycle import event_loop
from vipwire.proxy_daemon.cleanup import run_cleanup
from vipwire.terminal.output import MISUSED, plain_errors, print_line, print_note, print_warning
from vipwire_up import expose
from vipwire_up.claim_data_dir import claim_folder, end_holding_process
from vipwire_up.joining import join as joining
from vipwire_up.joining import manage
from vipwire_up.joining.manage import report_departure
from vipwire_up.joining.membership import Folder, Member, check_node, merge_servers, read_server
from vipwire_up.joining.run import Setting, current_time, run_machine
from vipwire_up.up_settings import build_prober, build_proxy_config, read_bgp_flags, read_node_ips

T = TypeVar("T")
_LONGEST_TOKEN: Final = 4096
_OF_SERVERS: Final = frozenset({"data_dir", "url", "token", "token_file", "ca_hash", "server"})
"""The parameters of `vipwire join --server`."""


def join_cluster(flags: dict[str, Any], given: Collection[str]) -> None:
    """Join the cluster unless this machine is in it already, and serve its Services until a signal.

    `given` are the parameters from the command line or the environment.
    """
    log.configure(Logging())
    if flags["proxy"] and not flags["server"]:
        with plain_errors():
            require_net_admin("vipwire join")  # before the cluster has a Node that cannot serve
    with plain_errors(MISUSED):
        if flags["server"] and (
            unused := sorted(set(given) - _OF_SERVERS - ({"proxy"} if not flags["proxy"] else set()))
        ):
            where = "set this flag for `vipwire up`; --server only prepares the machine"
            raise ConfigError(f"--{unused[0].replace('_', '-')}: {where}")
        member = _load_or_join(flags)
        if member is None:
            return
        Folder(flags["data_dir"]).authority_hash()  # an earlier version's file may hold more than one authority
        setting = _build_setting(flags, member.node)
    if setting.proxy is not None:
        log.configure(setting.proxy.logging)

    def ready(url: str) -> None:
        click.echo(f"joined as Node {member.node}: {url} forwards to {', '.join(member.servers)}")

    with plain_errors(), claim_folder(setting.folder, setting.proxy, "vipwire join", takeover=flags["takeover"]):
        event_loop.run_in_loop(run_machine(setting, member, ready))


def _load_or_join(flags: dict[str, Any]) -> Member | None:
    """Return this machine's identity; join the cluster first if it has none."""
    folder = Folder(flags["data_dir"])
    found, url = folder.read_member(), read_server(flags["url"]) if flags["url"] else ""
    if found is not None and not flags["server"]:
        return _check_known_member(folder, found, flags, url)
    return _join_as_new_member(folder, flags, url, flags["node_name"] or socket.gethostname().lower())


def _join_as_new_member(folder: Folder, flags: dict[str, Any], url: str, node: str) -> Member | None:
    """Join the cluster, or fetch the files of an API server."""
    token, pinned = _read_token(flags), flags["ca_hash"]
    for name, value in (("URL", url), ("--token or --token-file", token), ("--ca-hash", pinned)):
        if not value:
            raise ConfigError(f"{name} is missing: `vipwire token create` on the API server prints the command")
    if not flags["server"]:
        check_node(node)
        with plain_errors():
            return asyncio.run(joining.join_cluster(folder, url, token, pinned, node))
    with plain_errors():
        asyncio.run(joining.fetch_authority_key(folder, url, token, pinned))
    print_line(
        f"{folder.path}: has the cluster's authority; start the API server: vipwire up --data-dir {folder.path} …"
    )
    return None


def _check_known_member(folder: Folder, found: Member, flags: dict[str, Any], url: str) -> Member | None:
    """Compare the flags with this machine's cluster; add a further API server.

    A machine whose certificate expired while it was off joins again, if there is a token. Raise ConfigError if the
    flags name another cluster or Node.
    """
    if flags["node_name"] not in ("", found.node):
        raise ConfigError(f"--node-name {flags['node_name']}: this machine is Node {found.node}; vipwire leave first")
    if flags["ca_hash"] and flags["ca_hash"] != (pin := folder.authority_hash()):
        why = "vipwire leave first (--force if its servers are gone)"
        raise ConfigError(f"--ca-hash: this machine belongs to a cluster with another authority, {pin}: {why}")
    if (flags["token"] or flags["token_file"]) and joining.has_expired(folder.node, current_time()):
        print_note(f"the certificate of Node {found.node} has expired: joining again")
        return _join_as_new_member(folder, flags, url, found.node)
    if url and url not in found.servers:
        with plain_errors():
            asyncio.run(joining.find_authority(url, folder.authority_hash()))
            found = Member(found.node, merge_servers(found.servers, (url,)))
            folder.save_member(found)
    if flags["token"] or flags["token_file"]:
        print_note(f"this machine is already Node {found.node}: ignoring the token")
    return found


def _read_token(flags: dict[str, Any]) -> str:
    path: Path | None = flags["token_file"]
    if path is None:
        return str(flags["token"])
    if flags["token"]:
        raise ConfigError("--token and --token-file exclude each other")
    try:
        with path.open(encoding="ascii") as file:
            about = os.fstat(file.fileno())
            if stat.S_ISREG(about.st_mode) and about.st_mode & 0o077:
                print_warning(f"{path}: other users can read or change this token: chmod 600 {path}")
            return file.read(_LONGEST_TOKEN).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {error}") from error


def _build_setting(flags: dict[str, Any], node: str) -> Setting:
    folder: Path = flags["data_dir"]
    proxy = build_proxy_config(flags, node, Folder(folder).node.kubeconfig)
    return Setting(
        folder,
        proxy,
        flags["node_lease_seconds"],
        flags["relay_port"],
        flags["announce_interface"],
        read_bgp_flags(flags),
        build_prober(flags, node),
        probes=flags["probes"] == "machine",
        node_ips=read_node_ips(flags["node_ip"]),
    )


def leave_cluster(data_dir: Path, *, force: bool, keep_rules: bool) -> None:
    with plain_errors():
        folder = Folder(data_dir)
        member = folder.read_member()
        if member is None:
            raise VipwireError(f"{data_dir}: this machine belongs to no cluster")
        end_holding_process(data_dir)
        try:
            asyncio.run(report_departure(folder, member))
        except VipwireError as error:
            if not force:
                raise
            print_note(f"warning: {error}")
        if not keep_rules:
            _remove_rules()
        folder.delete_files()
        print_line(f"Node {member.node} has left")


def _remove_rules() -> None:
    if os.geteuid() == 0:
        run_cleanup(build_config({"cleanup": True}).config)


def _send_admin_request(kubeconfig: Path | None, request: Callable[[Access], Coroutine[Any, Any, T]]) -> T:
    """Send an admin's request to the API server of a kubeconfig; end the command if it is refused."""
    with plain_errors():
        return asyncio.run(request(expose.find_access(kubeconfig, print_note)))


def remove_machine(kubeconfig: Path | None, node: str) -> None:
    _send_admin_request(kubeconfig, partial(manage.remove_machine, node=node))
    print_line(f"Node {node} is removed: the API servers refuse its certificates")


def create_token(kubeconfig: Path | None, ttl: str, description: str, *, server: bool) -> None:
    with plain_errors(MISUSED):
        try:
            seconds = parse_duration(ttl)
        except ValueError as error:
            raise ConfigError(f"--ttl: {error}") from error
        if seconds < 0:
            raise ConfigError(f"--ttl {ttl}: must be in the future")
    create = partial(manage.create_token, seconds=seconds, servers=server, description=description)
    print_line(_send_admin_request(kubeconfig, create))


def list_tokens(kubeconfig: Path | None) -> None:
    for line in _send_admin_request(kubeconfig, manage.list_tokens):
        print_line(line)


def list_certificates(kubeconfig: Path | None) -> None:
    for line in _send_admin_request(kubeconfig, manage.list_certificates):
        print_line(line)


def delete_token(kubeconfig: Path | None, name: str, *, keep_machines: bool) -> None:
    for line in _send_admin_request(kubeconfig, partial(manage.delete_token, name=name, keep_machines=keep_machines)):
        print_line(line)
