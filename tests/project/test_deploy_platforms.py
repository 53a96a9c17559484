"""Images for several kinds of machines: every dependency has a wheel for each, and nothing names one kind."""

import re
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename
from scripts.wheels import LOCKS, PATH, PLATFORMS

ROOT = Path(__file__).parents[2]
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
