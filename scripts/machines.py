"""Machines with a live systemd, for scripts: pid, mount and network namespaces.

Each machine's root is an overlay, in memory, of this machine's root or of another system's folder. Its systemd starts
only requested units: those that
touch hardware, and this system's own, are masked. All machines are on one Ethernet, a bridge in another namespace.
Needs root, cgroup2, and Debian's systemd and iproute2.
"""

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE: Final = 120.0
_MASKED: Final = (
    *(f"systemd-{name}.service" for name in ("sysctl", "modules-load", "udevd", "udev-trigger", "random-seed")),
    *(f"systemd-{name}.service" for name in ("binfmt", "update-utmp", "tmpfiles-setup", "tmpfiles-setup-dev")),
    *(f"systemd-{name}.service" for name in ("machine-id-commit", "firstboot", "sysusers", "remount-fs", "logind")),
    *(f"systemd-{name}.service" for name in ("hwdb-update", "journal-flush", "journal-catalog-update", "pstore")),
    *("systemd-udevd-control.socket", "systemd-udevd-kernel.socket", "systemd-tmpfiles-clean.timer"),
    *("systemd-ask-password-console.path", "systemd-ask-password-wall.path", "kmod-static-nodes.service"),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-kernel-config.mount", "sys-kernel-debug.mount"),
    *("sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount", "proc-sys-fs-binfmt_misc.automount"),
    *("proc-sys-fs-binfmt_misc.mount", "apparmor.service", "keyboard-setup.service", "console-setup.service"),
)
_PREPARE: Final = """
set -e
echo 0 > {cgroup}/cgroup.procs
mount -t tmpfs tmpfs {folder}
mkdir {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mkdir -p etc/systemd/system
rm -f etc/systemd/system/etcd.service
for unit in {masked}; do ln -sf /dev/null etc/systemd/system/$unit; done
echo > etc/fstab
echo {name} > etc/hostname
printf '127.0.0.1 localhost\\n' > etc/hosts
echo {identity} > etc/machine-id
rm -rf etc/vipwire var/lib/vipwire var/lib/etcd/* run/vipwire root/.kube
{program}
exec unshare --cgroup --pid --fork --kill-child --mount --uts --ipc --propagation private sh -e {boot}
"""
_BOOT: Final = """
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mkdir -p .old
pivot_root . .old
hostname {name}
umount -l /.old
exec env -i container=vipwire PATH={path} /lib/systemd/systemd --unit=basic.target --show-status=0
"""


def network(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass
class Host:
    """A host of the Ethernet: name and address. Commands run in its network only."""

    prefix: str
    name: str
    address: str
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def network(self) -> str:
        return f"{self.prefix}-{self.name}"

    def connect(self) -> None:
        wire = f"w{self.name}"[:15]
        network("netns", "add", self.network)
        network(
            "-n", f"{self.prefix}-lan", "link", "add", wire, "type", "veth", "peer", "eth0", "netns", self.network
        )
        network("-n", f"{self.prefix}-lan", "link", "set", wire, "master", "lan", "up")
        for words in (("address", "add", f"{self.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
            network("-n", self.network, *words)
        network("-n", self.network, "link", "set", "lo", "up")

    def disconnect(self) -> None:
        network("-n", f"{self.prefix}-lan", "link", "set", f"w{self.name}"[:15], "down")

    def start(self, *command: str) -> None:
        """Start a command in its network; the end kills it."""
        words = ["nsenter", f"--net=/run/netns/{self.network}", *command]
        self.processes.append(
            subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True)
        )

    def run(self, *command: str, patience: float = _PATIENCE) -> "subprocess.CompletedProcess[str]":
        words = ["nsenter", f"--net=/run/netns/{self.network}", *command]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=patience)

    def end(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()


@dataclass
class Machine(Host):
    """A host with a live systemd."""

    folder: Path = Path("/nowhere")
    lower: Path = Path("/")
    first: int = 0

    def boot(self) -> None:
        cgroup = _cgroups() / self.network
        cgroup.mkdir(exist_ok=True)
        self.folder.mkdir()
        boot = self.folder.with_suffix(".boot")
        boot.write_text(_BOOT.format(name=self.name, path=_PATH))
        program = shutil.which("vipwire", path=str(Path(sys.executable).parent)) or "vipwire"
        own = self.lower == Path("/")
        script = _PREPARE.format(
            cgroup=cgroup,
            folder=self.folder,
            masked=" ".join(_MASKED),
            name=self.name,
            identity=secrets.token_hex(16),
            lower=self.lower,
            program=f"ln -sf {program} usr/local/bin/vipwire" if own else "",
            boot=boot,
        )
        self.start("unshare", "--mount", "--propagation", "private", "sh", "-c", script)
        until(self._booted, f"machine {self.name} boots")

    def _booted(self) -> bool:
        if not self.first:
            listed = (_cgroups() / self.network).rglob("cgroup.procs")
            pids = [int(pid) for path in listed for pid in path.read_text().split()]
            named = [pid for pid in pids if _comm(pid) == "systemd"]
            self.first = min(named, default=0)
        return bool(self.first) and self.shell("systemctl is-system-running").stdout.strip() == "running"

    def shell(self, script: str, **more: str) -> "subprocess.CompletedProcess[str]":
        environment = [f"{name}={value}" for name, value in {"PATH": _PATH, "HOME": "/root", **more}.items()]
        words = [
            "nsenter",
            "-t",
            str(self.first),
            "-a",
            "env",
            "-i",
            *environment,
            "bash",
            "-ec",
            f"cd /root\n{script}",
        ]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=_PATIENCE)

    def write(self, path: str, text: str) -> None:
        quoted = shlex.quote(text)
        self.shell(f"mkdir -p {Path(path).parent}; printf %s {quoted} > {path}").check_returncode()

    def kill(self) -> None:
        """Stop it at once: kill all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.first, signal.SIGKILL)

    def end(self) -> None:
        """End it, and remove its cgroups."""
        if self.first:
            self.kill()
        super().end()
        cgroup = _cgroups() / self.network
        until(lambda: not cgroup.exists() or _removed(cgroup), f"the processes of {self.name} end")


class Ethernet:
    """Connected hosts, while entered."""

    def __init__(self) -> None:
        self.prefix = f"vw{os.getpid()}"
        self._folder = Path(tempfile.mkdtemp(prefix="vipwire-machines-"))
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        network("netns", "add", f"{self.prefix}-lan")
        network("-n", f"{self.prefix}-lan", "link", "add", "lan", "type", "bridge", "forward_delay", "0")
        network("-n", f"{self.prefix}-lan", "link", "set", "lan", "up")
        return self

    def __exit__(self, *error: object) -> None:
        for each in reversed(self._hosts):
            each.end()
            network("netns", "delete", each.network, check=False)
        network("netns", "delete", f"{self.prefix}-lan", check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def host(self, name: str, address: str) -> Host:
        made = Host(self.prefix, name, address)
        self._hosts.append(made)
        made.connect()
        return made

    def machine(self, name: str, address: str, lower: Path = Path("/")) -> Machine:
        """Boot a machine; `lower` is the root of its system."""
        made = Machine(self.prefix, name, address, folder=self._folder / name, lower=lower)
        self._hosts.append(made)
        made.connect()
        made.boot()
        return made


def until(holds: Callable[[], bool], what: str, patience: float = _PATIENCE) -> float:
    """Wait until `holds()`; return the seconds. Raise RuntimeError after `patience` seconds."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > patience:
            raise RuntimeError(f"waited for {patience:.0f} s until {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def _cgroups() -> Path:
    lines = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
    return next(Path(words[1]) for words in lines if words[2] == "cgroup2")


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _removed(cgroup: Path) -> bool:
    try:
        for path in sorted((each for each in cgroup.rglob("*") if each.is_dir()), reverse=True):
            path.rmdir()
        cgroup.rmdir()
    except OSError:
        return False
    return True
