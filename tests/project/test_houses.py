"""The proxy without the other packages: what `pip install vipwire` alone gives serves Services in every mode."""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.fakes.forked import PROGRAM

ROOT = Path(__file__).parents[2]
OTHERS = ("vipwire_l7", "vipwire_up", "vipwire_lab")
HEAVY = ("aiohttp", "cryptography", "dns", "grpc")
NEEDED = ("click", "httptools", "msgspec", "prometheus_client", "rich", "yaml", "markdown_it", "mdurl", "pygments")
"""Libraries of the proxy, with those that rich has."""
MODES = ("nftables", "iptables", "userspace", "ebpf", "ipvs")
CASES = "test_endpoints_here_and_elsewhere_answer or test_each_port_has_its_own_target"
pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command: str | Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [*map(str, command)], cwd=ROOT, env=clean | environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with the libraries of the proxy alone, and delete the other packages."""
    folder = tmp_path_factory.mktemp("houses")
    folder.chmod(0o755)
    venv.create(folder / "environment", with_pip=False, symlinks=True)
    python = folder / "environment/bin/python"
    built = run(sys.executable, "-m", "hatchling", "build", "-d", folder / "dist", "-t", "wheel")
    assert built.returncode == 0, built.stderr
    (wheel,) = (folder / "dist").glob("*.whl")
    install = ("install", "--quiet", "--no-deps", "--no-index", wheel)
    done = run(sys.executable, "-m", "pip", "--python", python, *install)
    assert done.returncode == 0, done.stderr
    (site,) = (folder / "environment").glob("lib/python*/site-packages")
    for package in OTHERS:
        assert (site / package / "__init__.py").exists()
        shutil.rmtree(site / package)
    libraries = Path(msgspec_folder())
    for name in NEEDED:
        (site / name).symlink_to(libraries / name)
    (site / "typing_extensions.py").symlink_to(libraries / "typing_extensions.py")
    return folder / "environment/bin/vipwire"


def msgspec_folder() -> str:
    """Name the folder of this environment's libraries."""
    found = run(sys.executable, "-c", "import msgspec, pathlib; print(pathlib.Path(msgspec.__file__).parents[1])")
    return found.stdout.strip()


def test_nothing_of_the_other_packages_can_be_imported(program: Path) -> None:
    for name in (*OTHERS, *HEAVY):
        assert run(program.parent / "python", "-c", f"import {name}").returncode == 1, name


@pytest.mark.parametrize(
    ("command", "extra"), [("up", "up"), ("dns", "up"), ("ingress", "l7"), ("gateway", "l7"), ("lab", "lab")]
)
def test_a_command_of_another_package_names_the_extra_to_install(program: Path, command: str, extra: str) -> None:
    done = run(program, command, "--help")
    assert done.returncode == 1
    assert f"vipwire[{extra}]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("up", "--no-proxy", "--no-dns", "--data-dir"), "up"),
        (("dns", "--manifests"), "up"),
        (("token", "list", "--data-dir"), "up"),
        (("ingress", "--manifests"), "l7"),
        (("gateway", "--manifests"), "l7"),
    ],
)
def test_a_command_whose_library_is_missing_names_the_extra_to_install(
    program: Path, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    """The packages are there, as after `pip install vipwire`, and what they need is not."""
    done = run(program, *command, tmp_path, PYTHONPATH=str(ROOT / "src"))
    assert done.returncode == 1
    assert f"vipwire[{extra}]" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["status", "plan", "diff", "explain", "check", "top", "trace", "drain", "view"])
def test_commands_that_look_need_no_other_package(program: Path, command: str) -> None:
    assert run(program, command, "--help").returncode == 0


@pytest.mark.parametrize("mode", MODES)
def test_the_proxy_alone_serves_services(program: Path, mode: str) -> None:
    inside = ("-m", "vipwire_lab.guest_kernel", "--", sys.executable) if mode == "ipvs" else ()
    suite = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/proxy/conformance/test_reaching.py")
    done = run(sys.executable, *inside, *suite, "-k", f"{mode} and ({CASES})", **{PROGRAM: str(program)})
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
