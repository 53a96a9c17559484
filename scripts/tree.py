"""Build the tree with its own interpreter: `python -m scripts.tree --wheel dist/vipwire-0.2.0-py3-none-any.whl`.

The tree runs in /opt/vipwire on any Linux of its architecture, whatever C library the distribution has: Python 3.11,
its libraries, the C library and its loader are Debian 12's. The archive is a .tar.gz: a minimal system has no zstd or
xz. share/sbom.cdx.json lists the libraries and the Debian packages that its files are from.
"""

import argparse
import gzip
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from scripts import materials
from scripts.environment import ROOT, SHELLS, Environment, commit_time, compile_all, completion, settle, write_manual
from scripts.interpreters import MACHINES, SUITES, interpreter, own_architecture, run, unpack
from scripts.materials import Package, read_package

HOME: Final = Path("/opt/vipwire")
SUITE: Final = SUITES["bookworm"]
PYTHON: Final = HOME / "python/bin" / SUITE.python
INSTALLER: Final = ROOT / "deploy/install.sh"
LOADERS: Final = {"amd64": "ld-linux-x86-64.so.2", "arm64": "ld-linux-aarch64.so.1"}
_LEFT_OUT: Final = (
    *("EXTERNALLY-MANAGED", "sitecustomize.py", "idlelib", "lib2to3", "pydoc_data", "test", "tkinter", "turtle.py"),
    *("distutils", "ensurepip", "unittest", "lib-dynload/_test*", "lib-dynload/_ctypes_test*", "lib-dynload/_dbm*"),
    *("lib-dynload/readline*", "lib-dynload/nis*", "lib-dynload/xx*", "lib-dynload/_xx*", "lib-dynload/_curses*"),
    *("lib-dynload/ossaudiodev*", "lib-dynload/_crypt*", "config-3.*"),
)
_NEEDED: Final = re.compile(r"\(NEEDED\).*\[(.*)\]")


def name_of(version: str, architecture: str) -> str:
    return f"vipwire-{version}-linux-{architecture}"


def needed(paths: Iterable[Path]) -> set[str]:
    """Return the names of the shared libraries that programs and libraries need."""
    said = run("readelf", "--dynamic", "--wide", *paths)
    return set(_NEEDED.findall(said))


def copy_interpreter(root: Path, home: Path, architecture: str) -> set[Path]:
    """Copy Debian's unpacked Python, and make it use the tree's loader and C library; return the copied files."""
    library = home / "python/lib" / SUITE.python
    ignored = shutil.ignore_patterns(*(each for each in _LEFT_OUT if "/" not in each), "__pycache__")
    shutil.copytree(root / "usr/lib" / SUITE.python, library, ignore=ignored, symlinks=False)
    for pattern in _LEFT_OUT:
        for path in library.glob(pattern) if "/" in pattern else ():
            path.unlink()
    program = home / "python/bin" / SUITE.python
    program.parent.mkdir(parents=True)
    shutil.copyfile(root / "usr/bin" / SUITE.python, program)
    program.chmod(0o755)
    # RPATH, unlike RUNPATH, also holds for the libraries of libraries.
    libraries = HOME / "python/lib"
    options = ("--set-interpreter", libraries / LOADERS[architecture], "--force-rpath", "--set-rpath", libraries)
    run("patchelf", *options, program)
    return {root / "usr/bin" / SUITE.python, *(root / "usr/lib" / SUITE.python).rglob("*")}


def copy_libraries(root: Path, home: Path, architecture: str) -> set[Path]:
    """Copy the shared libraries that anything in the tree needs, and the loader; return the copied files."""
    triple = f"{MACHINES[architecture]}-linux-gnu"
    folders = [root / "lib" / triple, root / "usr/lib" / triple, root / "lib", root / "lib64"]
    have = {path.name for path in (home / "lib").rglob("*.so*")}
    waiting = needed([home / "python/bin" / SUITE.python, *home.rglob("*.so"), *home.rglob("*.so.*")])
    waiting.add(LOADERS[architecture])
    copied = set()
    while waiting:
        name = waiting.pop()
        target = home / "python/lib" / name
        if name in have or target.exists():
            continue
        source = next((folder / name for folder in folders if (folder / name).exists()), None)
        if source is None:
            raise SystemExit(f"no package of the tree has {name}")
        shutil.copyfile(source, target)
        copied.add(source.resolve())
        target.chmod(0o755)
        waiting |= needed([target])
    return copied


def find_packages(root: Path, copied: set[Path]) -> list[Package]:
    """Return the Debian packages that have any of the copied files."""
    # a package has its files in /lib or /usr/lib, which are one folder
    names = {str(path.relative_to(root)).removeprefix("usr/") for path in copied if path.is_file()}
    found = []
    for file in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        lines = (line.split(maxsplit=5) for line in run("dpkg-deb", "--contents", file).splitlines())
        if names & {words[5].removeprefix("./").removeprefix("usr/") for words in lines if words[0].startswith("-")}:
            found.append(read_package(file))
    return found


def add_files(home: Path, root: Path, packages: list[Package]) -> None:
    share = home / "share"
    write_manual(share / "man/man8")
    (share / "completion").mkdir()
    for shell in SHELLS:
        (share / "completion" / shell).write_text(completion(shell), encoding="utf-8")
    for name in ("vipwire.service", "vipwire.env"):
        shutil.copyfile(ROOT / "deploy/systemd" / name, share / name)
    for name in ("LICENSE", "README.md", "CHANGELOG.md"):
        shutil.copyfile(ROOT / name, share / name)
    (share / "licences").mkdir()
    for each in packages:
        shutil.copyfile(root / "usr/share/doc" / each.name / "copyright", share / "licences" / each.name)


def pack_tree(stage: Path, path: Path) -> None:
    """Write a .tar.gz with the commit's time, root's, in order of names."""

    def anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        return info

    plain = path.with_suffix("")
    with tarfile.open(plain, "w", format=tarfile.GNU_FORMAT) as archive:
        for each in sorted(stage.rglob("*")):
            archive.add(each, str(each.relative_to(stage)), recursive=False, filter=anonymous)
    with plain.open("rb") as source, path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    plain.unlink()


def build(wheel: Path, to: Path, architecture: str) -> Path:
    """Build the tree of a wheel and its installer into a folder; return the path of the archive."""
    commit_time()
    name = name_of(wheel.name.split("-")[1], architecture)
    with tempfile.TemporaryDirectory(prefix="vipwire-tree-") as folder:
        root, stage = Path(folder) / "debian", Path(folder) / "stage"
        unpack(SUITE, architecture, root, "libstdc++6", "libgcc-s1")
        compiler = interpreter(SUITE, Path(folder))
        environment = Environment(HOME, PYTHON, SUITE, architecture)
        stage.mkdir()
        libraries = environment.lay_out(stage, wheel, compiler)
        home = stage / HOME.relative_to("/")
        copied = copy_interpreter(root, home, architecture) | copy_libraries(root, home, architecture)
        packages = find_packages(root, copied)
        compile_all(compiler, stage, home / "python/lib" / SUITE.python)
        add_files(home, root, packages)
        listed = [*libraries, *(each.component() for each in packages)]
        materials.write(home / "share" / materials.NAME, "vipwire", listed)
        home.rename(stage / name)
        (stage / "opt").rmdir()
        settle(stage)
        to.mkdir(parents=True, exist_ok=True)
        pack_tree(stage, to / f"{name}.tar.gz")
    shutil.copyfile(INSTALLER, to / INSTALLER.name)
    (to / INSTALLER.name).chmod(0o755)
    return to / f"{name}.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.tree", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--architecture", choices=list(MACHINES), action="append", help="by default this machine's")
    given = parser.parse_args()
    for architecture in given.architecture or [own_architecture()]:
        sys.stdout.write(f"{build(given.wheel, given.to, architecture)}\n")


if __name__ == "__main__":
    main()
