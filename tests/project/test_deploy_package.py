"""The wheel and the sdist, built and installed: what `pip install` gives is all that vipwire needs to run."""

import email
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tests.project.deployed import ROOT

from vipwire import __version__

PROGRAMS = ("Makefile", "family.h", "vipwire.c", "vipwire.h", "vipwire.o")
"""ebpf mode's: their source goes with the object, as its licence asks."""
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path | None = None) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIPWIRE_"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both from the checkout, with the backend that pyproject.toml names."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "sdist", "-t", "wheel", cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment that sees the libraries of this one, but not this checkout."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = place.glob("lib/python*/site-packages")
    # A folder that a .pth file names has its own .pth files left unread: that of the editable install is one.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin/vipwire"


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_module_and_nothing_else(wheel: Path) -> None:
    sources = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    packed = {name for name in names(wheel) if name.startswith("vipwire") and ".dist-info/" not in name}
    programs = {f"vipwire/modes/ebpf/programs/{name}" for name in PROGRAMS}
    page = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src/vipwire/inspect/page/files").iterdir()}
    typed = {f"{package}/py.typed" for package in ("vipwire", "vipwire_l7", "vipwire_up", "vipwire_lab")}
    assert packed == sources | programs | page | typed
    assert f"vipwire-{__version__}-py3-none-any.whl" == wheel.name


def test_the_wheel_says_what_it_is_and_needs(wheel: Path) -> None:
    info = f"vipwire-{__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        scripts = archive.read(f"{info}/entry_points.txt").decode()
        licence = archive.read(f"{info}/licenses/LICENSE").decode()
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("vipwire", __version__, "MIT")
    needed = [each for each in metadata.get_all("Requires-Dist", []) if "extra ==" not in each]
    libraries = {"click", "httptools", "msgspec", "prometheus-client", "pyyaml", "rich"}
    assert {each.partition(">")[0] for each in needed} == libraries
    assert set(metadata.get_all("Provides-Extra", [])) == {"all", "etcd", "l7", "lab", "up"}
    assert "vipwire = vipwire.cli.start:start" in scripts
    assert licence == (ROOT / "LICENSE").read_text(encoding="utf-8")


def test_the_sdist_makes_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    run("tar", "-xf", sdist, "-C", tmp_path)
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "again", "-t", "wheel", cwd=source)
    (again,) = (tmp_path / "again").iterdir()
    assert again.name == wheel.name
    assert names(again) == names(wheel)
    assert (source / "deploy/base/daemonset.yaml").exists(), "the deployment comes along"


def test_what_was_installed_runs_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "web.yaml"
    manifest.write_text(
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: default},"
        " spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}}"
    )
    assert run(installed, "version", cwd=tmp_path) == f"vipwire {__version__}\n"
    assert "--proxy-mode" in run(installed, "proxy", "--help", cwd=tmp_path)
    assert "10.96.0.10" in run(installed, "plan", f"--manifests={manifest}", "-o", "json", cwd=tmp_path)
    assert "complete" in run(installed, "completion", "bash", cwd=tmp_path)
    where = run(installed.parent / "python", "-c", "import vipwire; print(vipwire.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent.parent)
