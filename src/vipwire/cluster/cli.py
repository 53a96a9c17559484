"""`vipwire up`, and `vipwire store`: backup and restore."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from vipwire.errors import VipwireError

_FOLDER: Final = click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    default=Path("/var/lib/vipwire"),
    show_default=True,
    envvar="VIPWIRE_DATA_DIR",
    help="Where objects, keys and kubeconfigs are kept.",
)


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    try:
        yield
    except* VipwireError as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise click.ClickException(str(first)) from None


@click.command()
@_FOLDER
@click.option("--bind-address", default="127.0.0.1", show_default=True, help="Where the API server listens.")
@click.option("--secure-port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="Port; 0 is any.")
@click.option("--tls-san", "names", multiple=True, help="A further name or address in the server's certificate.")
@click.option(
    "--store-limit",
    type=click.IntRange(0),
    default=0,
    help="Largest size of the store's file, in MiB; 0 is no limit.",
    show_default=True,
)
def up(data_dir: Path, bind_address: str, secure_port: int, names: tuple[str, ...], store_limit: int) -> None:
    """Run a cluster for Services on this machine: an API server that kubectl talks to, and its store.

    Writes a kubeconfig for each role into the data directory: admin.kubeconfig, node.kubeconfig, view.kubeconfig.
    Ends on SIGTERM or Ctrl-C; what was acknowledged is on the disk at any moment.
    """
    from vipwire.app import log  # noqa: PLC0415  # not for --help
    from vipwire.app.config_sections import Logging  # noqa: PLC0415
    from vipwire.cluster.up import Setting, run  # noqa: PLC0415

    def ready(url: str, kubeconfig: Path) -> None:
        click.echo(f"API server at {url}")
        click.echo(f"try: kubectl --kubeconfig {kubeconfig} get namespaces")

    log.configure(Logging())
    setting = Setting(data_dir, bind_address, secure_port, names, store_limit << 20)
    with _told_plainly():
        asyncio.run(run(setting, ready))


@click.group()
def store() -> None:
    """Back up and restore the objects of `vipwire up`."""


@store.command()
@_FOLDER
@click.argument("target", type=click.Path(path_type=Path))
def backup(data_dir: Path, target: Path) -> None:
    """Copy all objects into the new file TARGET. The cluster may be running."""
    from vipwire.cluster.store.backup import backup as copy  # noqa: PLC0415

    with _told_plainly():
        click.echo(f"{target}: revision {copy(data_dir, target)}")


@store.command()
@_FOLDER
@click.argument("source", type=click.Path(path_type=Path))
def restore(data_dir: Path, source: Path) -> None:
    """Put the objects of the backup SOURCE in place of those that are there. The cluster must be stopped.

    What was there is kept beside it, as store.db.old. Keys and kubeconfigs stay as they are.
    """
    from vipwire.cluster.store.backup import restore as put_back  # noqa: PLC0415

    with _told_plainly():
        click.echo(f"{data_dir}: revision {put_back(data_dir, source)}")
