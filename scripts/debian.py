"""Build a Debian package: `python -m scripts.debian --wheel dist/vipwire-0.1.0-py3-none-any.whl --to dist`.

The package has an environment of its own in /usr/lib/vipwire, with the libraries of requirements/run.lock by their
hashes: Debian 12 has older ones, or none. The interpreter is the system's, so the package is for that version of
Python and this architecture. The same commit gives the same bytes: times are the commit's, byte code carries none.
"""

import argparse
import email.utils
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from scripts.man import write_pages

ROOT: Final = Path(__file__).parents[1]
HOME: Final = Path("usr/lib/vipwire")
PYTHON: Final = Path("/usr/bin/python3")
COMPLETIONS: Final = {
    "bash": "usr/share/bash-completion/completions/vipwire",
    "zsh": "usr/share/zsh/vendor-completions/_vipwire",
    "fish": "usr/share/fish/vendor_completions.d/vipwire.fish",
}
CONTROL: Final = """\
Package: vipwire
Version: {version}
Architecture: {architecture}
Maintainer: The vipwire authors <vipwire@localhost>
Installed-Size: {size}
Depends: python3 (>= {python}~), python3 (<< {next_python}~), libc6, libgcc-s1
Recommends: nftables
Suggests: bird2, conntrack, haproxy, ipset, iptables, ipvsadm, kubernetes-client
Section: net
Priority: optional
Description: Kubernetes service proxy
 vipwire makes the kernel turn connections to a Service's virtual IP into
 connections to one of its Pods: by nftables, iptables, IPVS, eBPF or from
 userspace. It takes kube-proxy's place in a cluster, and balances addresses
 from manifests, or with an API server of its own, on machines without one.
 .
 The service is not started when the package is installed: put manifests into
 /etc/vipwire/services and say `systemctl enable --now vipwire`.
"""


def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run a command; raise SystemExit with its output if it fails."""
    done = subprocess.run(
        [*map(str, command)], env=dict(environment or os.environ), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return done.stdout


def system_python() -> tuple[int, int]:
    major, minor = run(PYTHON, "-c", "import sys; print(*sys.version_info[:2])").split()
    return int(major), int(minor)


def lay_out(stage: Path, wheel: Path) -> None:
    """Write the environment: the system's interpreter, the libraries, vipwire."""
    major, minor = system_python()
    home, libraries = stage / HOME, stage / HOME / f"lib/python{major}.{minor}/site-packages"
    libraries.mkdir(parents=True)
    (home / "bin").mkdir()
    (home / "bin/python").symlink_to(PYTHON)
    (home / "pyvenv.cfg").write_text(
        f"home = {PYTHON.parent}\ninclude-system-site-packages = false\nversion = {major}.{minor}\n", encoding="utf-8"
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    place: list[str | Path] = ["--target", libraries, "--python-version", f"{major}.{minor}", "--only-binary=:all:"]
    run(*pip, *place, "--require-hashes", "-r", ROOT / "requirements/run.lock")
    run(*pip, *place, "--upgrade", "--no-deps", "--no-index", wheel)
    shutil.rmtree(libraries / "bin")
    # pip records the wheel's origin: a path of the building machine.
    for note in libraries.glob("*.dist-info/direct_url.json"):
        note.unlink()
    for record in libraries.glob("*.dist-info/RECORD"):
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(("bin/", "../")) and "direct_url.json" not in line]
        record.write_text("".join(kept), encoding="utf-8")
    program = home / "bin/vipwire"
    program.write_text(
        f"#!/{HOME}/bin/python -P\nimport sys\n\nfrom vipwire.cli.start import start\n\nsys.exit(start())\n",
        encoding="utf-8",
    )
    program.chmod(0o755)
    compiled: list[str | Path] = [
        "-m",
        "compileall",
        "-q",
        "-j0",
        "--invalidation-mode=unchecked-hash",
        "-s",
        stage,
        "-p",
        "/",
    ]
    run(PYTHON, *compiled, libraries)


def add_files(stage: Path, version: str) -> None:
    """Write files outside of the environment: units, manual pages, completion, configuration."""
    (stage / "usr/bin").mkdir(parents=True)
    (stage / "usr/bin/vipwire").symlink_to(f"/{HOME}/bin/vipwire")
    units, etc = stage / "lib/systemd/system", stage / "etc/vipwire"
    units.mkdir(parents=True)
    (etc / "services").mkdir(parents=True)
    unit = (ROOT / "deploy/systemd/vipwire.service").read_text(encoding="utf-8")
    lines = [line for line in unit.splitlines(keepends=True) if not line.startswith("#")]
    (units / "vipwire.service").write_text("".join(lines).replace("/opt/vipwire/bin", "/usr/bin"), encoding="utf-8")
    shutil.copyfile(ROOT / "deploy/systemd/vipwire.env", etc / "vipwire.env")
    pages = stage / "usr/share/man/man8"
    write_pages(pages)
    for page in sorted(pages.iterdir()):
        packed(page)
    for shell, name in COMPLETIONS.items():
        (stage / name).parent.mkdir(parents=True)
        (stage / name).write_text(run(sys.executable, "-m", "vipwire", "completion", shell), encoding="utf-8")
    about = stage / "usr/share/doc/vipwire"
    about.mkdir(parents=True)
    shutil.copyfile(ROOT / "LICENSE", about / "copyright")
    shutil.copyfile(ROOT / "README.md", about / "README.md")
    shutil.copyfile(ROOT / "CHANGELOG.md", about / "changelog")
    packed(about / "changelog")
    dated = email.utils.formatdate(int(os.environ["SOURCE_DATE_EPOCH"]))
    entry = f"vipwire ({version}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
    (about / "changelog.Debian").write_text(f"{entry} -- The vipwire authors <vipwire@localhost>  {dated}\n")
    packed(about / "changelog.Debian")


def packed(path: Path) -> None:
    """Replace a file by a .gz without a name or time."""
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def describe(stage: Path, version: str) -> str:
    """Write the package's control files; return its architecture."""
    about = stage / "DEBIAN"
    about.mkdir()
    for name in ("postinst", "prerm", "postrm"):
        shutil.copy(ROOT / "deploy/debian" / name, about / name)
    (about / "conffiles").write_text("/etc/vipwire/vipwire.env\n", encoding="utf-8")
    major, minor = system_python()
    architecture = run("dpkg", "--print-architecture").strip()
    size = sum(path.lstat().st_size for path in stage.rglob("*") if path.is_file()) // 1024
    control = CONTROL.format(
        version=version,
        architecture=architecture,
        size=size,
        python=f"{major}.{minor}",
        next_python=f"{major}.{minor + 1}",
    )
    (about / "control").write_text(control, encoding="utf-8")
    return architecture


def settle(stage: Path) -> None:
    """Set all times to the commit's, and modes independent of the builder's umask."""
    then = int(os.environ["SOURCE_DATE_EPOCH"])
    for path in (stage, *stage.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (then, then), follow_symlinks=False)


def build(wheel: Path, to: Path, compression: str = "xz") -> Path:
    """Build the package of a wheel into a folder; return its path. `compression` is one of dpkg-deb's (-Z)."""
    version = wheel.name.split("-")[1]
    os.environ.setdefault("SOURCE_DATE_EPOCH", run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip())
    with tempfile.TemporaryDirectory(prefix="vipwire-deb-") as name:
        stage = Path(name) / "stage"
        stage.mkdir()
        lay_out(stage, wheel)
        add_files(stage, version)
        architecture = describe(stage, version)
        settle(stage)
        package = to / f"vipwire_{version}_{architecture}.deb"
        to.mkdir(parents=True, exist_ok=True)
        run("dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", stage, package)
    return package


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.debian", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    sys.stdout.write(f"{build(given.wheel, given.to)}\n")


if __name__ == "__main__":
    main()
