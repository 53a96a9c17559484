"""The programs iptables-save and iptables-restore of one family, in the variant that this node uses.

Both run in the network namespace of the calling thread.
"""

import enum
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from vipwire.errors import CommitError, UnsupportedError
from vipwire.model.net import Family

_PROGRAM: Final = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WAIT: Final = "5"
"""Seconds to wait for the lock that all users of the legacy variant share."""
_PATIENCE: Final = 60.0
_MARKS: Final = (":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY ")
_PROBE: Final = (
    "*nat\n:KUBE-PORTALS-PROBE - [0:0]\n"
    '-A KUBE-PORTALS-PROBE -p tcp -m comment --comment "a/b" -m tcp --dport 1 -m addrtype --dst-type LOCAL '
    "-m conntrack --ctstate NEW -j REDIRECT --to-ports 1\n"
    "-F KUBE-PORTALS-PROBE\n-X KUBE-PORTALS-PROBE\nCOMMIT\n"
)
"""Makes a rule that nobody reaches, and removes it: NAT is what a kernel or a container lacks."""


class Variant(enum.Enum):
    """The kernel's two rule engines; the value is the part of the programs' names."""

    NFT = "nft"
    LEGACY = "legacy"


class Tool:
    """The programs of one family and variant."""

    def __init__(self, family: Family, variant: Variant) -> None:
        self.family, self.variant = family, variant
        self.name = f"{_PROGRAM[family]}-{variant.value}"
        if _find(f"{self.name}-restore") is None or _find(f"{self.name}-save") is None:
            raise UnsupportedError(
                f"userspace mode needs {self.name}-restore, which is not installed: install the package iptables, "
                "or do without rules (--userspace-bind)"
            )

    def save(self) -> str:
        """Print the tables that ours are in. Raise CommitError if they cannot be read."""
        return "".join(self._run("save", "-t", table) for table in ("nat", "filter"))

    def save_counted(self) -> str:
        """Print what refuses and drops, each rule behind its `[packets:bytes]`."""
        return self._run("save", "-c", "-t", "filter")

    def restore(self, text: str) -> None:
        """Write rules, and leave alone what the text does not name. Raise CommitError if that is refused."""
        self._run("restore", "--noflush", "--counters", "-w", _WAIT, stdin=text)

    def probe(self) -> None:
        """Raise UnsupportedError, with what the tool says, if this kernel lacks what our rules need."""
        try:
            self.restore(_PROBE)
        except CommitError as error:
            raise UnsupportedError(
                f"userspace mode needs NAT rules, and this kernel or user may not have them: {error}; "
                "load iptable_nat, xt_REDIRECT, xt_addrtype and xt_conntrack, give CAP_NET_ADMIN, "
                "or do without rules (--userspace-bind)"
            ) from error

    def _run(self, verb: str, *arguments: str, stdin: str = "") -> str:
        program = f"{self.name}-{verb}"
        try:
            done = subprocess.run(  # noqa: S603 - ours to choose, and no shell
                [_find(program) or program, *arguments],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_PATIENCE,
                env={**os.environ, "LC_ALL": "C"},
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CommitError(f"{program}: {error}", transaction=stdin) from error
        if done.returncode:
            raise CommitError(f"{program}: {_reason(done.stderr, stdin) or done.returncode}", transaction=stdin)
        return done.stdout


def _reason(said: str, text: str) -> str:
    """Say what the tool said, with the line that it means."""
    reason = " ".join(line.strip() for line in said.splitlines() if not line.startswith("Try `")).strip()
    words = reason.replace(":", " ").split()
    numbers = [int(after) for before, after in pairwise(words) if before == "line" and after.isdigit()]
    lines = text.splitlines()
    return f"{reason}: {lines[numbers[0] - 1]}" if numbers and 0 < numbers[0] <= len(lines) else reason


def installed(family: Family) -> Iterator[Tool]:
    """Yield the tools of a family that are installed."""
    for variant in Variant:
        if _find(f"{_PROGRAM[family]}-{variant.value}-restore") and _find(f"{_PROGRAM[family]}-{variant.value}-save"):
            yield Tool(family, variant)


def choose(family: Family) -> Tool:
    """Choose the variant that this node uses: where kubelet has left its marks, else where more rules are, else nft.

    A node must not have its rules in both. Raise UnsupportedError if neither can be read.
    """
    weights: list[tuple[tuple[bool, int], Tool]] = []
    errors: list[str] = []
    for tool in installed(family):
        try:
            text = tool.save()
        except CommitError as error:
            errors.append(str(error))
            continue
        rules = sum(line.startswith("-A ") for line in text.splitlines())
        weights.append(((any(mark in text for mark in _MARKS), rules), tool))
    if weights:
        return max(weights, key=lambda each: each[0])[1]
    if errors:
        raise UnsupportedError(f"userspace mode needs {_PROGRAM[family]}, and it fails: {'; '.join(errors)}")
    return Tool(family, Variant.NFT)


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_PATH}")
