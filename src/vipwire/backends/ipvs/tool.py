"""Running iptables-save and iptables-restore: the only processes of ipvs mode, and only when a chain changes."""

import shutil
import subprocess

from vipwire.backends.ipvs.iptables import PROBE, parse_save, rank_variants, restore_text
from vipwire.backends.ipvs.names import ChainName, Rules
from vipwire.errors import CommitError, UnsupportedError
from vipwire.model.net import Family
from vipwire.reconcile.delta import Delta

_PREFIX = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATIENCE = 60.0


class Tool:
    """iptables of one family, in the variant (legacy or nft) that this node uses."""

    def __init__(self, family: Family) -> None:
        self._name = _PREFIX[family]
        self._variant: str | None = None

    def require(self) -> None:
        """Raise UnsupportedError unless one of the tool's variants works."""
        self._chosen()

    def read(self, ours: frozenset[ChainName]) -> dict[ChainName, Rules]:
        """Read our chains."""
        return parse_save(self._run("save"), ours) if ours else {}

    def counted(self) -> str:
        """Print all rules with their counters; raise UnsupportedError without a tool that works."""
        return self._run("save", "-c")

    def write(self, delta: Delta[ChainName, Rules]) -> int:
        """Apply a difference; return its size in bytes. Raise CommitError if a table is refused."""
        text = restore_text(delta)
        if text:
            try:
                self._run("restore", "--noflush", "-w", "5", stdin=text)
            except OSError as error:
                raise CommitError(f"{self._name}-restore: {error}", transaction=text) from error
        return len(text)

    @property
    def variant(self) -> str:
        """The variant, `legacy` or `nft`. Raise UnsupportedError if neither works."""
        return self._chosen()

    def _chosen(self) -> str:
        if self._variant is None:
            self._variant = self._choose()
        return self._variant

    def _choose(self) -> str:
        saved: dict[str, str] = {}
        errors: list[str] = []
        for variant in ("nft", "legacy"):
            try:
                saved[variant] = _call(f"{self._name}-{variant}-save")
            except OSError as error:
                errors.append(str(error))
        for variant in rank_variants(saved):
            try:
                _call(f"{self._name}-{variant}-restore", "--noflush", "-w", "5", stdin=PROBE)
            except OSError as error:
                errors.append(str(error))
            else:
                return variant
        raise UnsupportedError(f"ipvs mode needs {self._name} (package iptables), and it fails: {'; '.join(errors)}")

    def _run(self, verb: str, *arguments: str, stdin: str = "") -> str:
        return _call(f"{self._name}-{self._chosen()}-{verb}", *arguments, stdin=stdin)


def _call(program: str, *arguments: str, stdin: str = "") -> str:
    path = shutil.which(program, path=_PATH)
    if path is None:
        raise FileNotFoundError(f"there is no {program}")
    done = subprocess.run(  # noqa: S603 - the program is ours to choose, and gets no shell
        [path, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=_PATIENCE
    )
    if done.returncode != 0:
        raise OSError(f"{program}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return done.stdout
