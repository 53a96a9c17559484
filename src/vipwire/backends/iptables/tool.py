"""The tools of one family and variant: iptables-restore and iptables-save, and what they say when they refuse.

Both run in the network namespace of the calling thread. iptables-legacy has one lock for the whole machine; who waits
for it in vain wants to know who holds it.
"""

import enum
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from vipwire.errors import CommitError, UnsupportedError
from vipwire.model.net import Family

WAIT_SECONDS: Final = 5
_LINE: Final = re.compile(r"line:? (\d+)")
_SERVICE: Final = re.compile(r"([a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?)(?=[ \"]|$)")
_PROGRAM: Final = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


class Variant(enum.Enum):
    """Which of the kernel's two rule engines a tool speaks to."""

    NFT = "nft"
    LEGACY = "legacy"


@dataclass(slots=True)
class Patience:
    """How long the lock is waited for. Nothing else is done meanwhile: after a wait in vain one waits little."""

    seconds: int = WAIT_SECONDS

    def restore(self, tool: "RuleTool", text: str) -> None:
        """Give a text to a tool."""
        try:
            tool.restore(text, self.seconds)
        except LockedError:
            self.seconds = 1
            raise
        self.seconds = WAIT_SECONDS


class LockedError(CommitError):
    """Another program holds the xtables lock: the same may be accepted a moment later."""


class RuleTool(Protocol):
    """What reads and writes the tables of one family and variant."""

    family: Family
    variant: Variant
    name: str

    def save(self, table: str) -> str:
        """Print one table as iptables-save does; raise CommitError if it cannot be read."""

    def restore(self, text: str, wait: int = WAIT_SECONDS) -> None:
        """Write tables without flushing what the text does not name; raise CommitError if that is refused."""


class Tool:
    """The programs of one family and variant. Raise UnsupportedError if they are not installed."""

    def __init__(self, family: Family, variant: Variant) -> None:
        self.family, self.variant = family, variant
        self.name = f"{_PROGRAM[family]}-{variant.value}"
        self.restore_path = _find(family, variant, "-restore")
        self.save_path = _find(family, variant, "-save")

    def save(self, table: str) -> str:
        """Print one table. Raise CommitError if it cannot be read."""
        done = _run([self.save_path, "-t", table], b"")
        text = done.stdout.decode(errors="replace")
        if done.returncode:
            raise CommitError(f"{self.name}-save -t {table}: {_first_line(done.stderr) or done.returncode}")
        if "is incompatible" in text:
            raise CommitError(
                f"{self.name}-save -t {table}: the table holds rules that only nft can show: "
                f"remove them (nft list table {'ip' if self.family is Family.IPV4 else 'ip6'} {table})"
            )
        return text

    def restore(self, text: str, wait: int = WAIT_SECONDS) -> None:
        """Write tables, without flushing what the text does not name. Raise CommitError if that is refused.

        Raise LockedError if others held the xtables lock for `wait` seconds.
        """
        command = [self.restore_path, "--noflush", "--counters", "-w", str(wait)]
        done = _run(command, text.encode())
        if done.returncode:
            raise refusal(self.name, done.stderr.decode(errors="replace"), text, waited=wait)


def refusal(name: str, said: str, text: str, *, waited: int = WAIT_SECONDS) -> CommitError:
    """Turn what iptables-restore said into an error that names the line, its rule and the Service."""
    reason = " ".join(line.strip() for line in said.splitlines() if not line.startswith("Try `")).strip()
    if "xtables lock" in reason:
        return LockedError(f"{name}-restore waited {waited} s for the xtables lock, held by {lock_holder()}")
    lines = text.splitlines()
    found = _LINE.search(reason)
    number = int(found[1]) if found else 0
    if not 0 < number <= len(lines):
        return CommitError(f"{name}-restore: {reason}", transaction=text)
    # The legacy tool counts some errors from 0.
    line = lines[number - 1]
    service = _SERVICE.search(line.partition('--comment "')[2])
    about = f" (Service port {service[1]})" if service else ""
    return CommitError(f"{name}-restore: line {number}{about}: {line}: {reason}", transaction=text)


def lock_holder(lock: Path | None = None, proc: Path = Path("/proc")) -> str:
    """Name the process that holds the xtables lock, as far as /proc tells.

    Without `lock` it is the file that iptables-legacy takes: the environment may name another than the usual one.
    """
    lock = lock or Path(os.environ.get("XTABLES_LOCKFILE", "/run/xtables.lock"))
    try:
        inode = str(lock.stat().st_ino)
        for row in (proc / "locks").read_text(encoding="ascii").splitlines():
            fields = row.split()
            if "->" not in fields and len(fields) > 5 and fields[5].rpartition(":")[2] == inode:
                command = (proc / fields[4] / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f"process {fields[4]} ({command})"
    except OSError:
        pass
    return "a process that /proc does not show"


def versions(family: Family = Family.IPV4) -> Mapping[Variant, str]:
    """Tell which variants are installed, by the version that each prints."""
    found: dict[Variant, str] = {}
    for variant in Variant:
        try:
            path = _find(family, variant, "")
        except UnsupportedError:
            continue
        found[variant] = _run([path, "--version"], b"").stdout.decode(errors="replace").strip()
    return found


def preferred() -> Variant | None:
    """Tell which variant the plain name `iptables` is on this machine; None without such a program."""
    path = shutil.which("iptables", path=_path())
    if path is None:
        return None
    return Variant.NFT if "nf_tables" in _run([path, "--version"], b"").stdout.decode() else Variant.LEGACY


def _find(family: Family, variant: Variant, suffix: str) -> str:
    program = _PROGRAM[family]
    path = shutil.which(f"{program}-{variant.value}{suffix}", path=_path())
    if path is None and preferred() is variant:
        path = shutil.which(f"{program}{suffix}", path=_path())
    if path is None:
        raise UnsupportedError(
            f"iptables mode needs {program}-{variant.value}{suffix}, which is not installed: "
            "install the package iptables, or choose another --proxy-mode"
        )
    return path


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _run(command: list[str], data: bytes) -> "subprocess.CompletedProcess[bytes]":
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, input=data, capture_output=True, check=False, env=environment)  # noqa: S603 - found by _find


def _first_line(said: bytes) -> str:
    return said.decode(errors="replace").strip().partition("\n")[0]
