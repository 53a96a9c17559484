"""An installed vipwire as a folder: vipwire, its program, and the libraries of requirements/etcd.lock.

The Debian package and the tree with its own interpreter have the same environment, on different interpreters. It is
made for an architecture and a Python that need not be this machine's. The same commit gives the same bytes: times are
the commit's, byte code carries none.
"""

import gzip
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts.interpreters import MACHINES, Suite, run
from scripts.man import write_pages
from scripts.materials import Component, python_components

ROOT: Final = Path(__file__).parents[1]
SHELLS: Final = ("bash", "zsh", "fish")
_PLATFORMS: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
_PROGRAM: Final = """\
#!{home}/bin/python -P
import os
import sys

# Python looks for the CAs of public servers where Debian has them.
for path in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"):
    if os.path.exists(path):
        os.environ.setdefault("SSL_CERT_FILE", path)
        break

from vipwire.cli.start import start

sys.exit(start())
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where an environment is installed, and the interpreter that runs it."""

    home: Path
    python: Path
    suite: Suite
    architecture: str

    def lay_out(self, stage: Path, wheel: Path, compiler: Sequence[str | Path]) -> list[Component]:
        """Write it below a folder; return its libraries. `compiler` is a Python of its version for this machine."""
        home = stage / self.home.relative_to("/")
        libraries = home / f"lib/{self.suite.python}/site-packages"
        libraries.mkdir(parents=True)
        (home / "bin").mkdir()
        (home / "bin/python").symlink_to(self.python)
        (home / "pyvenv.cfg").write_text(
            f"home = {self.python.parent}\ninclude-system-site-packages = false\nversion = 3.{self.suite.minor}\n",
            encoding="utf-8",
        )
        listed = self._install(libraries, wheel)
        program = home / "bin/vipwire"
        program.write_text(_PROGRAM.format(home=self.home), encoding="utf-8")
        program.chmod(0o755)
        compile_all(compiler, stage, libraries)
        return listed

    def _install(self, libraries: Path, wheel: Path) -> list[Component]:
        pip: list[str | Path] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        place: list[str | Path] = ["--no-compile", "--target", libraries]
        place += wheel_options(self.suite, self.architecture)
        report = libraries / "report.json"
        run(*pip, *place, "--require-hashes", "--report", report, "-r", ROOT / "requirements/etcd.lock")
        listed = python_components(libraries, report)
        report.unlink()
        run(*pip, *place, "--upgrade", "--no-deps", "--no-index", wheel)
        shutil.rmtree(libraries / "bin", ignore_errors=True)
        # pip records the wheel's origin: a path of the building machine.
        for note in libraries.glob("*.dist-info/direct_url.json"):
            note.unlink()
        for record in libraries.glob("*.dist-info/RECORD"):
            lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
            kept = [line for line in lines if not line.startswith(("bin/", "../")) and "direct_url.json" not in line]
            record.write_text("".join(kept), encoding="utf-8")
        return listed


def wheel_options(suite: Suite, architecture: str) -> list[str]:
    """Return the options by which pip takes wheels for a release's Python on an architecture."""
    return [
        *("--only-binary=:all:", f"--python-version=3.{suite.minor}", "--implementation=cp"),
        *(f"--abi={abi}" for abi in (f"cp3{suite.minor}", "abi3", "none")),
        *(f"--platform={tag}_{MACHINES[architecture]}" for tag in _PLATFORMS),
    ]


def compile_all(compiler: Sequence[str | Path], stage: Path, folder: Path) -> None:
    """Compile a folder's modules to byte code that names the files as installed."""
    options = ("-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "-s", stage, "-p", "/")
    run(*compiler, *options, folder)


def write_manual(folder: Path) -> None:
    write_pages(folder)
    for page in sorted(folder.iterdir()):
        pack(page)


def completion(shell: str) -> str:
    return run(sys.executable, "-m", "vipwire", "completion", shell)


def pack(path: Path) -> None:
    """Replace a file by a .gz without a name or time."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def commit_time() -> int:
    """Return the commit's time, which all files get; programs that the build starts find it in their environment."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip())
    return int(os.environ["SOURCE_DATE_EPOCH"])


def settle(stage: Path) -> None:
    """Set all times to the commit's, and modes independent of the builder's umask."""
    then = commit_time()
    for path in (stage, *stage.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (then, then), follow_symlinks=False)
