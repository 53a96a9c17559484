"""Turns a refusal of iptables-restore into an error that names the line, its rule and the Service.

iptables-legacy has one lock for the whole machine; after a timeout the error names its holder.
"""

import os
import re
from pathlib import Path
from typing import Final

from vipwire.errors import BusyError, CommitError

_LINE: Final = re.compile(r"line:? (\d+)")
_SERVICE: Final = re.compile(r"([a-z0-9.-]+/[a-z0-9.-]+(?::[a-z0-9-]+)?)(?=[ \"]|$)")


def refusal(name: str, said: str, text: str, *, waited: int) -> CommitError:
    """Turn the output of iptables-restore into an error; `waited` are the seconds of its wait for the lock."""
    reason = " ".join(line.strip() for line in said.splitlines() if not line.startswith("Try `")).strip()
    if "xtables lock" in reason:
        return BusyError(f"{name}-restore waited {waited} s for the xtables lock, held by {lock_holder()}")
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
