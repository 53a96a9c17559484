"""Runs iptables-save and iptables-restore of one family and variant, in the calling thread's network namespace.

iptables-legacy has one lock for the whole machine; after a timeout the error names its holder.
"""

import codecs
import enum
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from vipwire.errors import BusyError, CommitError, UnsupportedError
from vipwire.linux.netlink.nftables import encode
from vipwire.linux.netlink.nftables.decode import list_chain_names
from vipwire.linux.netlink.nftables.wire import ABSENT, MessageType
from vipwire.linux.netlink.socket import NETLINK_NETFILTER, NetlinkSocket
from vipwire.model.net import Family
from vipwire.modes.xtables.legacy import LegacySocket
from vipwire.modes.xtables.save import read_tables

WAIT_SECONDS: Final = 5
"""Seconds to wait for the xtables lock, which all users of iptables-legacy share."""
PROGRAM: Final = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_PROC_NET: Final = Path("/proc/thread-self/net")
_LEGACY_TABLES: Final = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}
_PIECE: Final = 1 << 20
_DIRECTORIES: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Variant(enum.Enum):
    """One of the kernel's two iptables engines; the value is part of the names of its programs.

    The kernel applies both engines' rules, one after the other, so a node must have its rules in one: that of kubelet
    and the network plugin.
    """

    NFT = "nft"
    LEGACY = "legacy"


class RuleTool(Protocol):
    """Reads and writes the tables of one family and variant."""

    family: Family
    variant: Variant
    name: str

    def save(self, table: str) -> str:
        """Print one table like iptables-save; raise CommitError if that fails."""

    def pieces(self, table: str) -> Iterator[str]:
        """Print one table in pieces, to save memory; raise CommitError like `save`."""

    def restore(self, text: Iterable[str], wait: int = WAIT_SECONDS) -> None:
        """Write tables without flushing unnamed chains; raise CommitError if refused.

        The text may come in pieces.
        """


class IptablesTool:
    """The programs of one family and variant. Raise UnsupportedError if they are not installed.

    `purpose` describes the user for the error. A run ends after `limit` seconds; None for no limit.
    """

    def __init__(self, family: Family, variant: Variant, purpose: str, *, limit: float | None = None) -> None:
        self.family, self.variant, self._limit = family, variant, limit
        self.name = f"{PROGRAM[family]}-{variant.value}"
        self._restore = _require_tool(family, variant, "-restore", purpose)
        self._save = _require_tool(family, variant, "-save", purpose)
        self._plain = _find_tool_of_variant(family, variant, "")

    def save(self, *tables: str, counted: bool = False) -> str:
        """Print these tables, or all; `counted`: each rule behind its `[packets:bytes]`.

        Naming a missing table of the legacy engine creates it. Raise CommitError if reading fails.
        """
        return "".join(self._saved(table, counted=counted) for table in tables or ("",))

    def pieces(self, table: str) -> Iterator[str]:
        """Print a table: in the legacy variant piece by piece, in the other as a whole.

        Raise CommitError if reading fails.
        """
        if self.variant is not Variant.LEGACY:
            yield self.save(table)
            return
        command = [self._save, "-t", table]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with os.fdopen(os.memfd_create("errors"), "w+b") as errors:
            try:
                process = subprocess.Popen(  # noqa: S603 - as below
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=_build_environment()
                )
            except OSError as error:
                raise CommitError(f"{self.name}: {error}") from error
            with process:
                assert process.stdout is not None  # noqa: S101 - a pipe was asked for
                with suppress(OSError):  # unprivileged users have a limit; a smaller pipe works as well
                    fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _PIECE)
                while piece := os.read(process.stdout.fileno(), _PIECE):
                    yield decoder.decode(piece)
            yield decoder.decode(b"", final=True)
            if process.returncode:
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip().partition("\n")[0]
                raise CommitError(f"{self.name}-save -t {table}: {said or process.returncode}")

    def restore(self, text: Iterable[str], wait: int = WAIT_SECONDS) -> None:
        """Write tables without flushing unnamed chains. Raise CommitError if refused.

        The text may come in pieces. Raise BusyError if other programs held the lock for `wait` seconds.
        """
        with _memory_file(text) as given:
            done = self._run([self._restore, "--noflush", "--counters", "-w", str(wait)], given)
            if done.returncode:
                raise build_restore_error(
                    self.name, done.stderr.decode(errors="replace"), _read_again(given), waited=wait
                )

    def list_rules(self, table: str, chain: str) -> list[str]:
        """List the rules of one chain, each without `-A CHAIN`. Raise CommitError if reading fails."""
        done = self._run([self._plain or "", "-t", table, "-S", chain])
        if done.returncode:
            raise CommitError(f"{self.name} -t {table} -S {chain}: {done.stderr.decode(errors='replace').strip()}")
        return next(iter(read_tables(f"*{table}\n:{chain} -\n{_parse_rules(done.stdout)}").values()))[chain]

    def list_chains(self, table: str) -> frozenset[str]:
        """List the user-defined chains of a table, without reading rules; empty if the table does not exist.

        Raise OSError if the kernel refuses.
        """
        return self.list_chains_by_table((table,))[table]

    def list_chains_by_table(self, tables: Iterable[str]) -> dict[str, frozenset[str]]:
        """List the chains of several tables like `list_chains`."""
        return list_engine_chains(self.family, self.variant, tables)

    def _saved(self, table: str, *, counted: bool) -> str:
        done = self._run([self._save, *["-c"] * counted, *(["-t", table] if table else [])])
        text = done.stdout.decode(errors="replace")
        command = f"{self.name}-save -t {table}" if table else f"{self.name}-save"
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            raise CommitError(f"{command}: {said or done.returncode}")
        if table and "is incompatible" in text:
            raise CommitError(
                f"{command}: the table holds rules that only nft can show: "
                f"remove them (nft list table {'ip' if self.family is Family.IPV4 else 'ip6'} {table})"
            )
        return text

    def _run(self, command: list[str], given: BinaryIO | None = None) -> "subprocess.CompletedProcess[bytes]":
        try:
            return _run_command(command, given, self._limit)
        except (OSError, subprocess.SubprocessError) as error:
            transaction = "" if given is None else _read_again(given)
            raise CommitError(f"{self.name}: {error}", transaction=transaction) from error


def list_engine_chains(family: Family, variant: Variant, tables: Iterable[str]) -> dict[str, frozenset[str]]:
    """List the user-defined chains of an engine's tables, without a program. Raise OSError if the kernel refuses."""
    if variant is Variant.LEGACY:
        there = list_legacy_tables(family)  # reading a table that is not there would create it
        return {table: _list_legacy_chains(family, table) if table in there else frozenset() for table in tables}
    with NetlinkSocket(NETLINK_NETFILTER) as sock:
        found = list_chain_names(sock, family)
    return {
        table: frozenset(chain for chain, is_base in found.get(table, {}).items() if not is_base) for table in tables
    }


def _list_legacy_chains(family: Family, table: str) -> frozenset[str]:
    with closing(LegacySocket(family)) as opened:
        return opened.count_rules(table).chains


def find_installed_tools(family: Family, purpose: str, *, limit: float | None = None) -> Iterator[IptablesTool]:
    for variant in Variant:
        try:
            tool = IptablesTool(family, variant, purpose, limit=limit)
        except UnsupportedError:
            continue
        yield tool


def find_tools_with_tables(family: Family, purpose: str, *, limit: float | None = None) -> Iterator[IptablesTool]:
    """Yield the tools of a family whose engine can hold rules here.

    iptables-legacy would create a table that it names, and iptables-nft fails on a kernel without nf_tables.
    """
    for tool in find_installed_tools(family, purpose, limit=limit):
        if list_legacy_tables(family) if tool.variant is Variant.LEGACY else has_nft_engine():
            yield tool


def has_nft_engine() -> bool:
    """Report whether this kernel has nf_tables, or refuses the question to this process."""
    try:
        with NetlinkSocket(NETLINK_NETFILTER) as sock:
            sock.request(MessageType.GETGEN, encode.request_generation())
    except OSError as error:
        return error.errno not in ABSENT
    return True


def list_legacy_tables(family: Family) -> tuple[str, ...]:
    try:
        return tuple((_PROC_NET / _LEGACY_TABLES[family]).read_text(encoding="ascii").split())
    except OSError:
        return ()


def find_versions(family: Family = Family.IPV4) -> Mapping[Variant, str]:
    """Return the version output of each installed variant."""
    paths = ((variant, _find_tool_of_variant(family, variant, "")) for variant in Variant)
    return {variant: _read_version(path) for variant, path in paths if path is not None}


def find_preferred_variant() -> Variant | None:
    """Return the variant of the plain name `iptables`; None without such a program."""
    path = _find_tool("iptables")
    if path is None:
        return None
    return Variant.NFT if "nf_tables" in _read_version(path) else Variant.LEGACY


def _require_tool(family: Family, variant: Variant, suffix: str, purpose: str) -> str:
    path = _find_tool_of_variant(family, variant, suffix)
    if path is None:
        raise UnsupportedError(
            f"{purpose} needs {PROGRAM[family]}-{variant.value}{suffix}, which is not installed: "
            "install the package iptables, or choose another --proxy-mode"
        )
    return path


def _find_tool_of_variant(family: Family, variant: Variant, suffix: str) -> str | None:
    """Find a program by the variant's name, else by the plain name if that is of the variant."""
    path = _find_tool(f"{PROGRAM[family]}-{variant.value}{suffix}")
    if path is None and find_preferred_variant() is variant:
        return _find_tool(f"{PROGRAM[family]}{suffix}")
    return path


def _find_tool(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_DIRECTORIES}")


def _parse_rules(listed: bytes) -> str:
    lines = listed.decode(errors="replace").splitlines()
    return "\n".join(line for line in lines if line.startswith("-A "))


def _read_version(path: str) -> str:
    return _run_command([path, "--version"]).stdout.decode(errors="replace").strip()


@contextmanager
def _memory_file(text: Iterable[str]) -> Iterator[BinaryIO]:
    """Write a text into a memory file for a program's stdin.

    A pipe would fail with iptables-legacy: the alarm of its wait for the lock fires even after it has the lock, and
    interrupts a blocked read, which ends the text ("COMMIT expected").
    """
    with os.fdopen(os.memfd_create("rules"), "w+b", _PIECE) as given:
        for piece in (text,) if isinstance(text, str) else text:
            given.write(piece.encode())
        given.seek(0)
        yield given


def _read_again(given: BinaryIO) -> str:
    given.seek(0)
    return given.read().decode()


def _run_command(
    command: list[str], given: BinaryIO | None = None, limit: float | None = None
) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(  # noqa: S603 - a path that `_find_tool` has found, and no shell
        command,
        stdin=subprocess.DEVNULL if given is None else given,
        capture_output=True,
        check=False,
        timeout=limit,
        env=_build_environment(),
    )


def _build_environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


_LINE: Final = re.compile(r"line:? (\d+)")
_SERVICE: Final = re.compile(r"([a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?)(?=[ \"]|$)")


def build_restore_error(name: str, said: str, text: str, *, waited: int) -> CommitError:
    """Turn the output of iptables-restore into an error; `waited` are the seconds of its wait for the lock."""
    reason = " ".join(line.strip() for line in said.splitlines() if not line.startswith("Try `")).strip()
    if "xtables lock" in reason:
        return BusyError(f"{name}-restore waited {waited} s for the xtables lock, held by {find_lock_holder()}")
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


def find_lock_holder(lock: Path | None = None, proc: Path = Path("/proc")) -> str:
    """Name the process that holds the xtables lock, as far as /proc tells.

    Without `lock`, this checks the file that iptables-legacy uses, which the environment may set.
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
