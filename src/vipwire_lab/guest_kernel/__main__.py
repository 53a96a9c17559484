"""The command of `vipwire_lab.guest_kernel`."""

import contextlib
import sys
from pathlib import Path

import click

from vipwire_lab.guest_kernel.guest import MEMORY, TIMEOUT, Guest, GuestKernel
from vipwire_lab.guest_kernel.running import run_in_guest
from vipwire_lab.namespaces.errors import LabError


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--full", is_flag=True, help="Debian's own kernel in an emulator, which also has nftables, but is slow."
)
@click.option(
    "--unpacked",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --full: the folder of another kernel, as `scripts/setup kernel SUITE` leaves it.",
)
@click.option("--memory", default=MEMORY, show_default=True, help="Memory of the guest, which it allocates on use.")
@click.option("--timeout", default=TIMEOUT, show_default=True, help="Seconds after which to stop the guest.")
@click.option("--write", "writable", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def main(
    *,
    full: bool,
    unpacked: Path | None,
    memory: str,
    timeout: float,
    writable: tuple[Path, ...],
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as root under a Linux kernel of its own that has IPVS."""
    if unpacked is not None and not full:
        raise click.UsageError("--unpacked names a kernel for the emulator: give --full, too")
    kind = GuestKernel.DISTRIBUTION if full else GuestKernel.USER_MODE
    with contextlib.suppress(KeyboardInterrupt):
        try:
            sys.exit(run_in_guest(command, Guest(memory, timeout, writable, kind=kind, unpacked=unpacked)))
        except LabError as error:
            raise click.ClickException(str(error)) from error


main()
