"""`vipwire uninstall`: stops the units, removes rules, units and program, and says which settings stay."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import click

from vipwire.cli.units import remove_all, systemctl, systemd_runs
from vipwire.errors import VipwireError
from vipwire.terminal.output import plain_errors, print_line, print_warning

DEBIAN: Final = Path("/usr/lib/vipwire")
"""The folder of the Debian package."""
TREE: Final = Path("/opt/vipwire")
LISTED: Final = "installed"
"""The file in which install.sh lists the files and, with a slash, the folders that it made elsewhere."""
CONFIGURATION: Final = Path("/etc/vipwire")
DATA: Final = (CONFIGURATION, Path("/var/lib/vipwire"))
SETTINGS: Final = (
    *("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/netfilter/nf_conntrack_max"),
    *("net/netfilter/nf_conntrack_tcp_timeout_established", "net/netfilter/nf_conntrack_tcp_timeout_close_wait"),
)
"""The kernel settings that a proxy may have changed."""


@click.command(short_help="Remove vipwire from this machine.")
@click.option("--purge", is_flag=True, help="Also remove /etc/vipwire and /var/lib/vipwire: objects, keys, flags.")
@click.option("--by-package", is_flag=True, hidden=True, help="Do not remove the program: a package manager does.")
def uninstall(*, purge: bool, by_package: bool) -> None:
    """Stop vipwire's units, remove its rules, its units and the program.

    Flags in /etc/vipwire and data in /var/lib/vipwire stay without --purge. Kernel settings of the proxy stay: the
    last line lists them.
    """
    with plain_errors():
        if os.geteuid() != 0:
            raise VipwireError("run as root: sudo vipwire uninstall")
        prefix = Path(sys.prefix)
        if prefix == DEBIAN and not by_package:
            word = "purge" if purge else "remove"
            raise VipwireError(f"this vipwire is a Debian package: apt-get {word} vipwire")
        remove_all()
        _remove_rules()
        _remove_runtime()
        if not by_package:
            _remove_program(prefix)
        if systemd_runs():
            systemctl("daemon-reload")
        if purge:
            for folder in DATA:
                shutil.rmtree(folder, ignore_errors=True)
                print_line(f"{folder}: removed")
        _print_what_stays(purge=purge or by_package)


def _remove_rules() -> None:
    """Run `vipwire cleanup`, which refuses while a proxy runs outside of vipwire's systemd unit."""
    command = [sys.executable, "-P", "-m", "vipwire", "cleanup"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        print_warning(f"the rules stay: {(done.stderr.strip().splitlines() or ['vipwire cleanup failed'])[-1]}")
    else:
        print_line("rules: removed")


def _remove_runtime() -> None:
    for name in ("vipwire", "vipwire-ingress", "vipwire-gateway"):
        shutil.rmtree(Path("/run") / name, ignore_errors=True)


def _remove_program(prefix: Path) -> None:
    listed = prefix / LISTED
    if prefix != TREE or not listed.exists():
        print_warning(
            f"the program stays, because install.sh did not install it: remove {prefix}, or run pip uninstall vipwire"
        )
        return
    for line in reversed(listed.read_text(encoding="utf-8").splitlines()):
        with contextlib.suppress(OSError):  # the file is gone, or the folder has other files
            if line.endswith("/"):
                Path(line).rmdir()
            else:
                Path(line).unlink()
    flags, shipped = CONFIGURATION / "vipwire.env", prefix / "share/vipwire.env"
    if flags.exists() and flags.read_bytes() == shipped.read_bytes():
        flags.unlink()
    for folder in (CONFIGURATION / "services", CONFIGURATION):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    shutil.rmtree(prefix)
    print_line(f"{prefix}: removed")


def _print_what_stays(*, purge: bool) -> None:
    if not purge:
        for folder in DATA:
            if folder.exists():
                print_line(f"{folder}: kept; `rm -r {folder}` removes it")
    values = [(name, Path("/proc/sys") / name) for name in SETTINGS]
    there = [f"{name.replace('/', '.')}={path.read_text().strip()}" for name, path in values if path.exists()]
    print_line(f"kernel settings stay until the next boot: {' '.join(there)}")
