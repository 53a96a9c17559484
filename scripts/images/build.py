"""Builds the images as OCI archives, without an engine, a registry or root: `python -m scripts.images.build`.

`vipwire` is the proxy alone, with the programs of all modes; `vipwire-all` has every house, and HAProxy. Both have
two layers: Debian's packages, and vipwire with its libraries. Equal commits and packages give equal bytes.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scripts import materials, wheels
from scripts.environment import ROOT
from scripts.images import oci, packages
from scripts.images.packages import Archive
from scripts.interpreters import MACHINES, run
from scripts.interpreters import SYSTEM as PYTHON
from scripts.materials import Component, Package

from vipwire import __version__

REPOSITORY: Final = "registry.example/vipwire"
ALL: Final = f"{REPOSITORY}:{__version__}-all"
LIBRARIES: Final = Path("usr/lib/python3/dist-packages")
NOBODY: Final = 65532
_USERS: Final = f"root:x:0:0:root:/root:/usr/sbin/nologin\nvipwire:x:{NOBODY}:{NOBODY}:vipwire:/:/usr/sbin/nologin\n"
_GROUPS: Final = f"root:x:0:\nvipwire:x:{NOBODY}:\n"
_PROGRAM: Final = "#!/usr/bin/python3 -P\nimport sys\n\nfrom vipwire.cli.start import start\n\nsys.exit(start())\n"
_UNUSED: Final = (
    "usr/share/bash-completion",
    "usr/share/doc",
    "usr/share/doc-base",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/locale",
    "usr/share/man",
    "usr/share/pixmaps",
    "usr/share/python3",
    "usr/share/applications",
    "usr/share/zoneinfo/posix",
    "usr/share/zoneinfo/right",
    "usr/lib/python3.11/pydoc_data",
    "usr/lib/python3.11/test",
    "usr/lib/systemd",
    "usr/lib/init",
    "etc/init.d",
    "etc/logrotate.d",
    "etc/rsyslog.d",
    "var/lib",
)
_CERTIFICATES: Final = "usr/share/ca-certificates/mozilla"
_BUNDLE: Final = "etc/ssl/certs/ca-certificates.crt"
_ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """An image: Debian's packages, the lock of its libraries, and the houses that it does without."""

    suffix: str
    packages: tuple[str, ...]
    lock: str
    without: tuple[str, ...] = ()


KINDS: Final = (
    Kind("", packages.PROXY, "proxy.lock", ("vipwire_l7", "vipwire_lab", "vipwire_up")),
    Kind("-all", packages.ALL, "etcd.lock"),
)


def system(root: Path, fetched: list[Package]) -> None:
    """Lay out Debian's packages, users, and certificate authorities."""
    packages.unpack(fetched, root)
    bundle = "".join(path.read_text("ascii") for path in sorted((root / _CERTIFICATES).glob("*.crt")))
    for each in (*_UNUSED, _CERTIFICATES):
        shutil.rmtree(root / each, ignore_errors=True)
    for name, content in {"passwd": _USERS, "group": _GROUPS, **({_BUNDLE[4:]: bundle} if bundle else {})}.items():
        (root / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "etc" / name).write_text(content, encoding="utf-8")
    # Debian's alternatives.
    for name in ("iptables", "ip6tables"):
        for suffix in ("", "-save", "-restore"):
            (root / "usr/sbin" / f"{name}{suffix}").symlink_to(f"{name}-nft{suffix}")
    for name in ("tmp", "run", "var/lib", "proc", "sys", "dev", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    _compile(root, "usr/lib/python3.11")


def vipwire(root: Path, kind: Kind, wheel: Path, machine: str) -> list[Component]:
    """Lay out vipwire with its libraries by their hashes; return the libraries."""
    libraries = root / LIBRARIES
    libraries.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--target", str(libraries)]
    pip += wheels.platform(machine)
    report = root / "report.json"
    run(*pip, "--require-hashes", "--report", report, "-r", ROOT / "requirements" / kind.lock)
    run(*pip, "--no-index", wheel)
    for each in (libraries / "bin", *(libraries / house for house in kind.without)):
        shutil.rmtree(each, ignore_errors=True)
    listed = materials.python_components(libraries, report)
    report.unlink()
    for info in libraries.glob("*.dist-info"):
        # They name the building machine's files.
        for note in ("direct_url.json", "RECORD", "INSTALLER", "REQUESTED"):
            (info / note).unlink(missing_ok=True)
    program = root / "usr/bin/vipwire"
    program.parent.mkdir(parents=True)
    program.write_text(_PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    _compile(root, str(LIBRARIES))
    return listed


def _compile(root: Path, folder: str) -> None:
    """Write byte code that names no time; the interpreter of Debian 12 is the image's."""
    options: list[str | Path] = ["-q", "-j1", "--invalidation-mode=unchecked-hash", "-s", root, "-p", "/"]
    run(PYTHON, "-m", "compileall", *options, root / folder, environment=os.environ | {"PYTHONHASHSEED": "0"})


@dataclass(frozen=True, slots=True)
class Source:
    """What is built: the wheel, its commit, and the commit's time."""

    wheel: Path
    revision: str
    seconds: int

    def build(self, to: Path, architectures: Iterable[str]) -> list[Path]:
        """Build both images for each architecture; return the files."""
        made = []
        for architecture in architectures:
            with tempfile.TemporaryDirectory(prefix="vipwire-image-") as name:
                archive = Archive(Path(name), architecture)
                for kind in KINDS:
                    made.append(to / f"vipwire{kind.suffix}_{__version__}_{architecture}.oci.tar")
                    self._one(Path(name) / f"root{kind.suffix}", kind, archive, made[-1])
        return made

    def _one(self, folder: Path, kind: Kind, archive: Archive, to: Path) -> None:
        lower, upper = folder / "system", folder / "vipwire"
        fetched = archive.fetch(kind.packages)
        system(lower, fetched)
        listed = [each.component() for each in fetched]
        listed += vipwire(upper, kind, self.wheel, MACHINES[archive.architecture])
        materials.write(upper / "usr/share/vipwire" / materials.NAME, f"vipwire{kind.suffix}", listed)
        labels = {
            "org.opencontainers.image.title": f"vipwire{kind.suffix}",
            "org.opencontainers.image.version": __version__,
            "org.opencontainers.image.revision": self.revision,
            "org.opencontainers.image.licenses": "MIT",
        }
        config = {
            "Entrypoint": ["vipwire"],
            "Cmd": ["--help"],
            "Env": [f"{name}={value}" for name, value in _ENVIRONMENT.items()],
            "User": str(NOBODY),
            "WorkingDir": "/",
        }
        image = oci.Image(
            f"{REPOSITORY}:{__version__}{kind.suffix}", archive.architecture, config, labels, self.seconds
        )
        oci.write(to, image, [oci.layer(each, self.seconds) for each in (lower, upper)])


def architecture_here() -> str:
    return {machine: name for name, machine in MACHINES.items()}[platform.machine()]


def of_checkout(folder: Path) -> Source:
    """Build the wheel of this checkout in a folder, with the time of its commit."""
    git = ("git", "-C", ROOT, "log", "-1")
    seconds = run(*git, "--format=%ct").strip()
    pip = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    run(sys.executable, *pip, "--wheel-dir", folder, ROOT, environment=os.environ | {"SOURCE_DATE_EPOCH": seconds})
    (wheel,) = folder.glob("vipwire-*.whl")
    return Source(wheel, run(*git, "--format=%H").strip(), int(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.images.build", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--architecture", action="append", choices=list(MACHINES), help="by default all")
    given = parser.parse_args()
    given.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vipwire-wheel-") as name:
        for path in of_checkout(Path(name)).build(given.to, given.architecture or MACHINES):
            sys.stdout.write(f"{path.stat().st_size / 1e6:6.1f} MB  {path}\n")


if __name__ == "__main__":
    main()
