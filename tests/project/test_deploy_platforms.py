"""Images for several kinds of machines: every dependency has a wheel for each, and nothing names one kind."""

import re
import subprocess
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename
from scripts.wheels import LOCKS, PATH, PLATFORMS

ROOT = Path(__file__).parents[2]
TARGETS = 4
_PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)(?: ; (.+?))? \\$", re.MULTILINE)
_IMAGE_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.7"}


def wheels(platform: str, lock: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Read which wheels a platform takes from a lock, by name and version: the machine of each, and its hash."""
    found = {}
    for line in PATH.read_text(encoding="ascii").splitlines()[1:]:
        where, source, file, digest = line.split()
        if (where, source) == (platform, lock):
            name, version, _, tags = parse_wheel_filename(file)
            found[str(name), str(version)] = " ".join(sorted({tag.platform for tag in tags})), digest
    return found


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_pinned_package_has_a_wheel_for_the_platform(platform: str, lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="ascii")
    pinned = {(name, version) for name, version, when in _PIN.findall(text) if _counts(when)}
    there = wheels(platform, lock)
    assert pinned - set(there) == set(), "`make lock`"
    for package, (machine, digest) in there.items():
        assert machine == "any" or PLATFORMS[platform] in machine, package
        assert f"sha256:{digest}" in text, f"{package}: the lock has another file"


def _counts(when: str) -> bool:
    return not when or Marker(when).evaluate(_IMAGE_PYTHON)


def test_no_containerfile_names_a_machine() -> None:
    for path in (ROOT / "deploy").rglob("Containerfile"):
        assert not re.search(r"amd64|x86_64|arm64|aarch64|--platform", path.read_text(encoding="utf-8")), path


def made(builder: str, *settings: str) -> list[str]:
    command = ["make", "--no-print-directory", "-n", "image", f"BUILDER=/usr/bin/{builder}", "IMAGE=r/v", *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(f"/usr/bin/{builder} ")]


def test_make_image_makes_a_list_of_images_for_several_platforms() -> None:
    lines = made("podman", "PLATFORMS=linux/amd64,linux/arm64")
    built = [line for line in lines if " build " in line]
    assert len(built) == TARGETS
    assert all("--platform linux/amd64,linux/arm64" in line and "--manifest r/v:" in line for line in built)
    pushed = made("docker", "PLATFORMS=linux/amd64,linux/arm64")
    assert len(pushed) == TARGETS
    assert all(
        "buildx build --platform linux/amd64,linux/arm64" in line and "--push -t r/v:" in line for line in pushed
    )


def test_make_image_alone_makes_images_of_this_machine() -> None:
    lines = made("podman")
    assert len(lines) == TARGETS
    assert all(" build -f " in line and " -t r/v:" in line and "--platform" not in line for line in lines)
