"""`vipwire up`, and `vipwire store`: backup, restore, migrate."""

import asyncio
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from vipwire.terminal.command_flags import with_flags
from vipwire.terminal.output import MISUSED, plain_errors, print_line, print_note
from vipwire_up.nodes.flags import (
    EXEC_PROBES,
    EXEC_PROBES_USER,
    NODE_IP,
    NODE_LEASE,
    NODE_NAME,
    PROBES,
    PROXY,
    PROXY_MODE,
    bgp_flags,
    data_dir_option,
    port_option,
)
from vipwire_up.store.backup import back_up_store as write_backup
from vipwire_up.store.backup import restore_store as restore_backup
from vipwire_up.store.etcd.settings import read_settings

_FOLDER: Final = data_dir_option("the objects, keys and kubeconfigs")
_etcd_options = with_flags(
    click.option("--etcd-servers", default="", help="URLs of etcd's members, separated by commas."),
    click.option("--etcd-cafile", default="", help="Authority of etcd's certificates; a PEM file."),
    click.option("--etcd-certfile", default="", help="Client certificate for etcd; a PEM file."),
    click.option("--etcd-keyfile", default="", help="Its key."),
    click.option("--etcd-prefix", default="", help="Prefix of all keys; default /vipwire."),
    click.option("--etcd-username", default="", help="User name at etcd, if etcd has users."),
    click.option("--etcd-password-file", default="", help="File with the user's password."),
)


@click.command()
@_FOLDER
@click.option(
    "--store",
    type=click.Choice(["sqlite", "etcd"]),
    default="sqlite",
    show_default=True,
    help="Store of objects: `sqlite`, a file in the data directory, or `etcd`, which several servers can share.",
)
@_etcd_options
@click.option(
    "--bind-address", default="127.0.0.1", show_default=True, help="Address at which the API server listens."
)
@port_option("--secure-port", 6443, "Port")
@click.option("--tls-san", "names", multiple=True, help="A further name or address in the server's certificate.")
@click.option(
    "--cluster-signing-duration",
    default="720h",
    show_default=True,
    help="Lifetime of certificates of servers and machines; vipwire renews them after two thirds of the lifetime.",
)
@click.option(
    "--store-limit",
    type=click.IntRange(0),
    default=0,
    help="Most space for the store's file and its log, in MiB; 0 is no limit.",
    show_default=True,
)
@NODE_NAME
@NODE_IP
@NODE_LEASE
@click.option(
    "--service-cluster-ip-range",
    default="10.96.0.0/16,fd00:10:96::/112",
    show_default=True,
    help="CIDRs of ClusterIPs, one of each family, the default family first; used at the first start only.",
)
@click.option("--service-node-port-range", default="30000-32767", show_default=True, help="Ports of NodePorts.")
@PROXY
@PROXY_MODE
@click.option("--dns/--no-dns", default=True, show_default=True, help="Answer DNS for the Services.")
@click.option("--dns-address", default="127.0.0.1", show_default=True, help="Address at which DNS listens.")
@port_option("--dns-port", 53, "Port for UDP and TCP")
@click.option(
    "--dns-upstream",
    "upstream",
    multiple=True,
    help="Server for other names, IP or IP:port; repeatable. Default: the servers in /etc/resolv.conf.",
)
@click.option("--cluster-domain", default="cluster.local", show_default=True, help="The zone of the Services' names.")
@click.option(
    "--load-balancer-range",
    "load_balancer_ranges",
    multiple=True,
    help="CIDR of addresses for LoadBalancer Services; repeatable.",
)
@click.option("--announce-interface", default="", help="Interface on which to announce these addresses: ARP and NDP.")
@click.option("--view-bind-address", default="", help="Address of the proxy's page: see `vipwire view --help`.")
@bgp_flags
@PROBES
@EXEC_PROBES
@EXEC_PROBES_USER
@click.option(
    "--takeover", is_flag=True, help="Take over from the running `vipwire up` or proxy: end that process, then start."
)
@click.argument("proxy_flags", nargs=-1, type=click.UNPROCESSED, metavar="[-- PROXY-FLAG...]")
def up(**flags: Any) -> None:
    """Run an API server for Services, its store, controllers, DNS and a proxy, in one process.

    Use kubectl with a kubeconfig of the data directory: admin.kubeconfig, node.kubeconfig, view.kubeconfig,
    ingress.kubeconfig. Put flags of vipwire proxy behind --, such as --masquerade-all or --config FILE. SIGTERM or
    Ctrl-C ends vipwire up. Every acknowledged change is on the disk, and the rules stay, so that traffic goes on.
    """
    from vipwire_up.up_settings import start_up  # noqa: PLC0415

    start_up(flags)


@click.command()
@_FOLDER
@click.argument("name")
@click.option("--port", type=click.IntRange(1, 65535), required=True, help="The Service's port.")
@click.option("--to", "targets", required=True, help="Endpoints: ADDRESS:PORT, separated by commas.")
@click.option("-n", "--namespace", default="default", show_default=True, help="The Service's namespace.")
@click.option("--type", "kind", type=click.Choice(["ClusterIP", "NodePort", "LoadBalancer"]), default="ClusterIP")
@click.option("--protocol", type=click.Choice(["TCP", "UDP", "SCTP"]), default="TCP", show_default=True)
@click.option("--check", default="", help="Health check of each endpoint: tcp or http:/path. By default, no check.")
@click.option(
    "--check-seconds", type=click.IntRange(1, 3600), default=2, show_default=True, help="Time between two checks."
)
@click.option(
    "--external-traffic-policy",
    "policy",
    type=click.Choice(["Cluster", "Local"]),
    default="Cluster",
    show_default=True,
    help="Local: clients from outside reach only the endpoints on the machine at which they arrive.",
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig for the API server.")
@click.pass_context
def expose(
    context: click.Context,
    /,
    data_dir: Path,
    kubeconfig: Path | None,
    name: str,
    port: int,
    targets: str,
    **given: Any,
) -> None:
    """Create a Service NAME and its endpoints in a running `vipwire up`. Run it again to change them.

    vipwire expose web --port 80 --to 10.0.0.5:8080,10.0.0.6:8080 --check http:/healthz

    The API server is that of --kubeconfig or --data-dir; without these, the one that kubectl would ask ($KUBECONFIG,
    ~/.kube/config), or that of /var/lib/vipwire.
    """
    from vipwire_up import expose as exposing  # noqa: PLC0415  # not for --help

    with plain_errors(MISUSED):
        found = exposing.read_targets(targets)
    with plain_errors():
        rest = (given["kind"], given["protocol"], given["check"], given["check_seconds"], given["policy"])
        wanted = exposing.Wanted(name, given["namespace"], port, found, *rest)
        if context.get_parameter_source("data_dir") is not ParameterSource.DEFAULT:
            kubeconfig = kubeconfig or data_dir / "admin.kubeconfig"
        made = asyncio.run(exposing.expose_service(exposing.find_access(kubeconfig, print_note), wanted))
        for line in exposing.describe_addresses(made):
            print_line(line)


@click.group()
def store() -> None:
    """Back up, restore and migrate the objects of `vipwire up`."""


@store.command(short_help="Copy all objects into a new file.")
@_FOLDER
@click.argument("target", type=click.Path(path_type=Path))
def backup(data_dir: Path, target: Path) -> None:
    """Copy all objects into the new file TARGET, also while `vipwire up` runs."""
    with plain_errors():
        click.echo(f"{target}: revision {write_backup(data_dir, target)}")


@store.command()
@_FOLDER
@click.argument("source", type=click.Path(path_type=Path))
def restore(data_dir: Path, source: Path) -> None:
    """Replace all objects by those of the backup SOURCE. `vipwire up` must not run.

    The former store stays as store.db.old. Keys and kubeconfigs stay as they are.
    """
    with plain_errors():
        click.echo(f"{data_dir}: revision {restore_backup(data_dir, source)}")


@store.command()
@_FOLDER
@click.option(
    "--to", "target", type=click.Choice(["etcd", "sqlite"]), required=True, help="Store to which to copy the objects."
)
@_etcd_options
def migrate(data_dir: Path, target: str, **flags: str) -> None:
    """Move all objects from the data directory to etcd, or back. No `vipwire up` may run meanwhile.

    The former place keeps its objects, but no vipwire up starts there by mistake: store.db becomes store.db.migrated,
    and etcd notes the move.
    """
    with plain_errors(MISUSED):
        settings = read_settings({name.replace("_", "-"): value for name, value in flags.items()})
    with plain_errors():
        from vipwire_up.open_store import needs_etcd  # noqa: PLC0415

        with needs_etcd():
            from vipwire_up.migrate_store import migrate_store as move  # noqa: PLC0415
        count = asyncio.run(move(target, data_dir, settings))
        where = f"etcd at {settings}, prefix {settings.prefix}" if target == "etcd" else data_dir
        click.echo(f"{where}: {count} objects")
