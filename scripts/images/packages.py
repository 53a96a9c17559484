"""Fetches Debian's packages for the images: apt resolves and verifies them, dpkg-deb unpacks them.

No maintainer script runs, so a root for another architecture needs no emulator, and the build needs no root.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from scripts.interpreters import run
from scripts.materials import Package, read_package

KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES: Final = ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security")
PROXY: Final = ("python3", "dash", "tzdata", "netbase", "iptables", "ipset", "ipvsadm", "kmod", "nftables")
"""The interpreter, and the programs of all modes: each image can remove what another mode left."""
ALL: Final = (*PROXY, "haproxy", "ca-certificates", "conntrack")
_UNUSED: Final = (
    # needed by maintainer scripts
    "adduser",
    "debconf",
    "debianutils",
    "dpkg",
    "init-system-helpers",
    "lsb-base",
    "openssl",
    "passwd",
    "perl-base",
    "sysvinit-utils",
    "tar",
    "usrmerge",
    # needed by Python's module nis
    "libnsl2",
)
_CONFIGURATION: Final = """\
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::State::lists "{folder}/lists";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Debug::NoLocking "true";
"""
_INSTALLED: Final = """\
Package: {name}
Status: install ok installed
Version: 1:999
Architecture: {architecture}
Multi-Arch: foreign
Maintainer: none
Description: a package that the image does without

"""


class Archive:
    """Debian's archive for one architecture, with lists of packages in a folder of its own."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.architecture = architecture
        self._cache = folder / "cache/archives"
        (folder / "lists/partial").mkdir(parents=True)
        (self._cache / "partial").mkdir(parents=True)
        sources = (f"deb [signed-by={KEYS}] http://deb.debian.org/{suite} main\n" for suite in SUITES)
        (folder / "sources.list").write_text("".join(sources), encoding="utf-8")
        status = (_INSTALLED.format(name=name, architecture=architecture) for name in _UNUSED)
        (folder / "status").write_text("".join(status), encoding="utf-8")
        configuration = folder / "apt.conf"
        configuration.write_text(_CONFIGURATION.format(folder=folder, architecture=architecture), encoding="utf-8")
        self._environ = os.environ | {"APT_CONFIG": str(configuration), "LC_ALL": "C"}
        self._run("update", "--quiet", "--error-on=any")

    def fetch(self, names: tuple[str, ...]) -> list[Package]:
        """Download packages and what they depend on; return them by name."""
        shutil.rmtree(self._cache)
        (self._cache / "partial").mkdir(parents=True)
        self._run("install", "--quiet", "--yes", "--download-only", *names)
        return sorted(map(read_package, self._cache.glob("*.deb")), key=lambda each: each.name)

    def _run(self, *arguments: str) -> None:
        run("apt-get", *arguments, environment=self._environ)


def unpack(packages: list[Package], root: Path) -> None:
    """Unpack packages into a root with merged /usr."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    for each in packages:
        # dpkg-deb --extract would replace the links by folders.
        files = subprocess.run(["dpkg-deb", "--fsys-tarfile", each.file], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "--keep-directory-symlink", "-p", "-C", root], input=files, check=True)
