"""Writes requirements/wheels.txt: the wheel of each pinned package for each platform of the images.

`make lock` runs it. It asks pip as on such a platform, only for wheels that the locks name by hash, so a package
without a wheel for a platform is noticed when it is pinned, not when an image is built.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

REQUIREMENTS: Final = Path(__file__).parents[1] / "requirements"
PATH: Final = REQUIREMENTS / "wheels.txt"
LOCKS: Final = ("proxy.lock", "run.lock", "etcd.lock")
PLATFORMS: Final = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""The platforms of the images, and their machine names in wheels."""
_ABIS: Final = ("cp311", "abi3", "none")
_TAGS: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def platform(machine: str) -> list[str]:
    """Return the options by which pip takes wheels for the images' Python on a machine."""
    tags = (f"--platform={tag}_{machine}" for tag in _TAGS)
    return [
        "--only-binary=:all:",
        "--python-version=3.11",
        "--implementation=cp",
        *(f"--abi={abi}" for abi in _ABIS),
        *tags,
    ]


def _taken(lock: str, machine: str) -> Iterator[tuple[str, str]]:
    """Ask pip which files of a lock it would install on a machine; yield name and hash of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        asked = ["install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--require-hashes"]
        asked += [
            *platform(machine),
            "--target",
            folder,
            "--report",
            str(report),
            "--requirement",
            str(REQUIREMENTS / lock),
        ]
        subprocess.run([sys.executable, "-m", "pip", *asked], check=True)
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    for each in found["install"]:
        said = each["download_info"]
        yield said["url"].rpartition("/")[2], said["archive_info"]["hashes"]["sha256"]


def document() -> str:
    """List platform, lock, file and hash, a line each."""
    lines = sorted(
        f"{platform} {lock} {name} {digest}"
        for platform, machine in PLATFORMS.items()
        for lock in LOCKS
        for name, digest in _taken(lock, machine)
    )
    return "# Written by scripts/wheels.py: platform, lock, wheel, SHA-256.\n" + "".join(
        f"{line}\n" for line in lines
    )


if __name__ == "__main__":
    PATH.write_text(document(), encoding="utf-8")
