"""`vipwire install systemd`: writes the units of `vipwire up`, `join`, `ingress`, `gateway` and `dns`.

Each unit runs this installation's program with the flags of /etc/vipwire/NAME.env, has a watchdog (Type=notify), and
only the rights that its command needs.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from vipwire.cli.units import list_written_units, restart_all, start_units, systemd_runs
from vipwire.errors import VipwireError
from vipwire.file_io.files import check_owner, create_file, make_folders, write_named
from vipwire.terminal.output import plain_errors, print_line, print_warning


@dataclass(frozen=True, slots=True)
class Unit:
    """A command as a service: its rights, and the paths that it writes."""

    about: str
    capabilities: str
    families: str
    flags: str
    more: tuple[str, ...] = ()


_NETWORK: Final = "AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET"
_DENY_CODE: Final = "MemoryDenyWriteExecute=yes"
_KERNEL: Final = (
    _DENY_CODE,
    *("ProtectKernelTunables=no", "StateDirectory=vipwire", "StateDirectoryMode=0700", "RuntimeDirectory=vipwire"),
)
_KEPT: Final = ("RuntimeDirectoryPreserve=yes", "ReadWritePaths=-/run/xtables.lock", "KillMode=mixed")
_INTERNET: Final = "AF_UNIX AF_INET AF_INET6 AF_NETLINK"
_HAPROXY_RIGHTS: Final = (
    "CAP_NET_BIND_SERVICE CAP_SETUID CAP_SETGID CAP_SYS_CHROOT CAP_KILL CAP_CHOWN CAP_DAC_OVERRIDE CAP_FOWNER"
)


def _list_haproxy_settings(name: str) -> tuple[str, ...]:
    """Return the settings for an HAProxy: its folder, and chroot, which systemd counts among the mounts."""
    return (
        # HAProxy outlives a controller that is killed, and the next controller takes it over
        *("ProtectKernelTunables=yes", f"RuntimeDirectory=vipwire-{name}", "KillMode=process"),
        "RuntimeDirectoryPreserve=restart",
        # HAProxy 3 compiles regular expressions to code, and refuses a configuration if it cannot
        "MemoryDenyWriteExecute=no",
        # not RuntimeDirectory, which systemd removes when the unit stops; `+`: outside of the sandbox
        *("ExecStartPre=+/bin/mkdir -p -m 755 /run/vipwire", "ReadWritePaths=-/run/vipwire"),
        *("Environment=HOME=/root", "SystemCallFilter=@system-service chroot"),
    )


_PROXY_RIGHTS: Final = "CAP_NET_ADMIN CAP_NET_RAW CAP_NET_BIND_SERVICE"
SERVICES: Final = {
    "up": Unit("API server, proxy and DNS", _PROXY_RIGHTS, _NETWORK, "--bind-address=127.0.0.1", (*_KERNEL, *_KEPT)),
    "join": Unit("member of a cluster", _PROXY_RIGHTS, _NETWORK, "", (*_KERNEL, *_KEPT)),
    "ingress": Unit(
        "Ingress controller",
        _HAPROXY_RIGHTS,
        _INTERNET,
        "--publish-address=127.0.0.1",
        _list_haproxy_settings("ingress"),
    ),
    "gateway": Unit("Gateway controller", _HAPROXY_RIGHTS, _INTERNET, "", _list_haproxy_settings("gateway")),
    "dns": Unit(
        "DNS for Services",
        "CAP_NET_BIND_SERVICE",
        _INTERNET,
        "--kubeconfig=/var/lib/vipwire/node.kubeconfig",
        (_DENY_CODE, "ProtectKernelTunables=yes"),
    ),
}
_MACHINES: Final = ("up", "join")
"""The units that write the others' kubeconfig: if both start, the others wait until it is ready."""
_UNIT: Final = """\
# Written by `vipwire install systemd {name}`. Flags are in {env}.
[Unit]
Description=vipwire {name}: {about}
Documentation=man:vipwire-{name}(8)
After=network-online.target nftables.service{after}
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=30
EnvironmentFile=-{env}
ExecStart={program} {name} $VIPWIRE_{variable}_FLAGS
Restart=always
RestartSec=2
TimeoutStartSec=300
TimeoutStopSec=60
OOMScoreAdjust=-999
{more}
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
RestrictAddressFamilies={families}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
UMask=0077
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@obsolete @swap @reboot @module
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def render_unit(name: str, program: str, folder: Path = Path("/etc/vipwire")) -> str:
    service = SERVICES[name]
    return _UNIT.format(
        name=name,
        after="" if name in _MACHINES else "".join(f" vipwire-{each}.service" for each in _MACHINES),
        variable=name.upper(),
        program=program,
        env=folder / f"{name}.env",
        about=service.about,
        capabilities=service.capabilities,
        families=service.families,
        more="\n".join(service.more),
    )


def render_environment(name: str) -> str:
    head = f"# Flags of `vipwire {name}`, without quotes and on one line; `vipwire {name} --help` shows them all."
    return f"{head}\nVIPWIRE_{name.upper()}_FLAGS={SERVICES[name].flags}\n"


@click.group()
def install() -> None:
    """Install vipwire as a service of this machine."""


@install.command("systemd", short_help="Write systemd units for commands.")
@click.argument("names", nargs=-1, type=click.Choice(list(SERVICES)))
@click.option("--now", is_flag=True, help="Enable and start them.")
@click.option("--upgrade", is_flag=True, help="Write the existing units again and restart those that run.")
@click.option("--print", "printed", is_flag=True, help="Print the units, but do not write them.")
@click.option("--root", type=click.Path(path_type=Path), default=Path("/"), hidden=True)
def install_units(names: tuple[str, ...], root: Path, *, now: bool, upgrade: bool, printed: bool) -> None:
    """Write systemd units for commands: up, join, ingress, gateway, dns.

    vipwire never overwrites the flags of a command in /etc/vipwire/NAME.env, and replaces the unit each time: to
    change a unit, use `systemctl edit vipwire-NAME`. After an upgrade, --upgrade restarts the running units in an
    order that loses no connection; packages do so themselves.
    """
    if upgrade:
        names = tuple(each.removeprefix("vipwire-") for each in list_written_units(root))
    elif not names:
        raise click.UsageError(f"name units: {', '.join(SERVICES)}")
    program = shutil.which("vipwire") or str(Path(sys.argv[0]).resolve())
    for name in names:
        if printed:
            print_line(render_unit(name, program))
            continue
        with plain_errors():
            if root == Path("/"):
                require_visible(program, sys.prefix)
            _write_unit(name, program, root)
    if (now or upgrade) and not printed:
        with plain_errors():
            if upgrade:
                restart_all()
            else:
                _enable_and_start(names)
    elif not printed:
        units = " ".join(f"vipwire-{name}" for name in names)
        print_line(f"start: systemctl daemon-reload && systemctl enable --now {units}")


def require_visible(*paths: str) -> None:
    """Raise VipwireError if units cannot see one of these paths: each has a private /tmp and /var/tmp."""
    for path in paths:
        if path.startswith(("/tmp/", "/var/tmp/")):  # noqa: S108  # what PrivateTmp hides
            raise VipwireError(
                f"{path} is in a folder that services cannot read: install vipwire elsewhere, such as /opt"
            )


def _write_unit(name: str, program: str, root: Path) -> None:
    target, flags = root / f"etc/systemd/system/vipwire-{name}.service", root / f"etc/vipwire/{name}.env"
    try:
        make_folders(target.parent)
        make_folders(flags.parent)
        write_named(target, render_unit(name, program).encode(), "the unit")
        check_owner(flags, "the flags")
        _make_flags(flags, render_environment(name))
    except OSError as error:
        raise VipwireError(f"{error.filename}: {error.strerror}") from error
    print_line(f"{target}: flags in {flags}")


def _make_flags(path: Path, content: str) -> None:
    """Write a file of flags, which may hold a token, for its owner alone; keep an existing one. Raise OSError."""
    try:
        create_file(path, content.encode())
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            print_warning(f"{path}: other users can read or change these flags: chmod 600 {path}")


def _enable_and_start(names: tuple[str, ...]) -> None:
    if not systemd_runs():
        raise VipwireError("--now: systemd does not run on this machine")
    start_units([f"vipwire-{name}" for name in names])
