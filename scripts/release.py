"""Make all that a release consists of: `python -m scripts.release`, or `make release`.

That is the wheel, the sdist, the Debian packages, the trees with their own interpreter, the images, the Helm chart,
the list of materials (CycloneDX), provenance and SHA256SUMS, in dist/; with --key also a signature. The same commit
gives the same bytes: with --twice all is built again elsewhere and compared.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts import debian, materials, signing, tree
from scripts.environment import ROOT, settle
from scripts.images.build import Source
from scripts.interpreters import MACHINES, SUITES, run

from vipwire import __version__

HELM: Final = ROOT / ".venv/tools/helm"


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def python_packages(to: Path) -> Path:
    """Build sdist and wheel; return the wheel."""
    say("the sdist and the wheel")
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIPWIRE_"))}
    with tempfile.TemporaryDirectory(prefix="vipwire-release-") as name:
        # A checkout of the commit: uncommitted files are not released.
        source = Path(name) / "source"
        run("git", "clone", "--quiet", "--no-local", ROOT, source)
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(to), "-t", "sdist", "-t", "wheel"]
        subprocess.run(command, cwd=source, env=clean, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = to.glob("*.whl")
    return wheel


def chart(to: Path) -> None:
    """Pack the chart, with links replaced by their files."""
    say("the Helm chart")
    with tempfile.TemporaryDirectory(prefix="vipwire-chart-") as name:
        staged = Path(name) / "vipwire"
        shutil.copytree(ROOT / "deploy/helm/vipwire", staged)
        settle(staged)
        run(HELM, "package", staged, "--destination", to)


def release(to: Path) -> dict[str, str]:
    """Build everything in an empty folder; write and return the sums."""
    to.mkdir(parents=True, exist_ok=True)
    if left := sorted(path.name for path in to.iterdir()):
        raise SystemExit(f"{to} is not empty: {', '.join(left[:5])}; remove it, or name another folder with --to")
    wheel = python_packages(to)
    for architecture in MACHINES:
        for suite in SUITES.values():
            say(f"the package for Debian {suite.number}, {architecture}")
            debian.build(wheel, to, suite, architecture)
        say(f"the tree with its own interpreter, {architecture}")
        tree.build(wheel, to, architecture)
    chart(to)
    say("the images")
    commit = run("git", "-C", ROOT, "log", "-1", "--format=%H").strip()
    Source(wheel, commit, int(os.environ["SOURCE_DATE_EPOCH"])).build(to, MACHINES)
    say("the list of materials")
    materials.join(to, signing.sums(to))
    locks = {path.name: path.read_bytes() for path in (ROOT / "requirements").glob("*.lock")}
    signing.write_provenance(to, commit, locks)
    made = signing.sums(to)
    (to / signing.SUMS).write_text("".join(f"{each}  {name}\n" for name, each in made.items()), encoding="utf-8")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "dist")
    parser.add_argument("--twice", action="store_true", help="build everything again elsewhere and compare the bytes")
    parser.add_argument("--key", type=Path, help="sign SHA256SUMS with this secret key of minisign")
    given = parser.parse_args()
    if changed := run("git", "-C", ROOT, "status", "--porcelain").splitlines():
        raise SystemExit(f"commit first: a release is what is committed, and {len(changed)} files differ from it")
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    made = release(given.to)
    if given.twice:
        with tempfile.TemporaryDirectory(prefix="vipwire-again-") as name:
            say("all of it again, to compare")
            again = release(Path(name) / "dist")
        if differing := sorted(name for name in made.keys() | again.keys() if made.get(name) != again.get(name)):
            raise SystemExit(f"built twice, these differ: {', '.join(differing)}")
        say("built twice, every byte the same")
    if given.key:
        signing.sign(given.to, given.key, f"vipwire {__version__}")
    for name in made:
        say(f"  {(given.to / name).stat().st_size / 1e6:6.1f} MB  {name}")


if __name__ == "__main__":
    main()
