"""Debian's Python of one release and architecture, unpacked by mmdebstrap without being installed."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SYSTEM: Final = Path("/usr/bin/python3")


@dataclass(frozen=True, slots=True)
class Suite:
    """A release of Debian and its Python 3."""

    name: str
    number: int
    minor: int

    @property
    def python(self) -> str:
        return f"python3.{self.minor}"


SUITES: Final = {each.name: each for each in (Suite("bookworm", 12, 11), Suite("trixie", 13, 13))}
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's architectures, and the kernel's names of them."""


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command; raise SystemExit with its output if it fails."""
    done = subprocess.run(
        [*map(str, command)], env=dict(environment or os.environ), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def own_architecture() -> str:
    return run("dpkg", "--print-architecture").strip()


def unpack(suite: Suite, architecture: str, to: Path, *more: str) -> None:
    """Unpack a release's Python, and more packages, with all that they depend on; keep their files in apt's cache."""
    if shutil.which("mmdebstrap") is None:
        raise SystemExit("mmdebstrap is not installed: apt-get install mmdebstrap")
    packages = ",".join((suite.python, *more))
    run(
        *("mmdebstrap", "--quiet", "--variant=extract", f"--architectures={architecture}"),
        *("--skip=essential/unlink,cleanup/apt/cache", f"--include={packages}", suite.name, to),
    )


def interpreter(suite: Suite, folder: Path) -> list[str]:
    """Return the command of a release's Python for this machine: the system's, or one unpacked below a folder."""
    asked = [str(SYSTEM), "-c", "import sys; print(*sys.version_info[:2])"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False) if SYSTEM.exists() else None
    if said is not None and said.stdout.split() == ["3", str(suite.minor)]:
        return [str(SYSTEM)]
    root = folder / f"{suite.name}-{own_architecture()}"
    if not root.exists():
        unpack(suite, own_architecture(), root)
    # unpacked alone, a release without /lib has no links from there to /usr/lib
    loader = next(path for path in root.glob("**/ld-linux-*.so.[12]") if path.exists())
    folders = (path for pattern in ("lib", "usr/lib") for path in root.glob(f"{pattern}/*-linux-gnu"))
    libraries = ":".join(map(str, folders))
    home = f"PYTHONHOME={root / 'usr'}"
    return ["env", home, str(loader), "--library-path", libraries, str(root / "usr/bin" / suite.python)]
