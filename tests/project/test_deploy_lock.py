"""What is installed is pinned with hashes: requirements/*.lock agree with pyproject.toml, and with each other."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
BUILD, TOOLS = (
    [line for line in (FOLDER / f"{name}.in").read_text().splitlines() if line and not line.startswith("#")]
    for name in ("build", "tools")
)
GROUPS = PROJECT["dependency-groups"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
RUN = [*PROJECT["project"]["dependencies"], *EXTRAS["l7"], *EXTRAS["up"]]
ETCD = [*RUN, *(line for line in EXTRAS["etcd"] if not line.startswith("vipwire["))]
WANTED = {
    "proxy": PROJECT["project"]["dependencies"],
    "run": RUN,
    "etcd": ETCD,
    "test": [*RUN, *GROUPS["test"], *GROUPS["lint"]],
    "build": BUILD,
}
AROUND = {"tools": TOOLS, "fuzz": GROUPS["fuzz"], "plot": GROUPS["plot"], "clients": GROUPS["clients"]}
"""Locks of what is not installed for tests."""
_PINNED = re.compile(r"([a-z0-9-]+)==([0-9a-z.]+)(?: ; ([^\\]+?))? \\((?: --hash=sha256:[0-9a-f]{64}(?: \\)?)+)")


def pins(name: str) -> dict[str, str]:
    """Read a lock; whatever in it is no pin with hashes fails. Of several versions, that of this Python counts."""
    text = " ".join((FOLDER / f"{name}.lock").read_text(encoding="ascii").split())
    found: dict[str, str] = {}
    while text:
        pin = _PINNED.match(text)
        assert pin, text[:200]
        if pin[1] not in found or Marker(pin[3]).evaluate():
            found[pin[1]] = pin[2]
        text = text[pin.end() :].strip()
    return found


@pytest.mark.parametrize("name", [*WANTED, *AROUND])
def test_every_dependency_is_pinned_at_a_version_that_the_project_allows(name: str) -> None:
    pinned = pins(name)
    for text in (WANTED | AROUND)[name]:
        wanted = Requirement(text)
        if not _counts(wanted, set()):
            continue
        assert wanted.specifier.contains(pinned[canonicalize_name(wanted.name)]), f"{text}: `make lock`"


@pytest.mark.parametrize("name", WANTED)
def test_what_dependencies_depend_on_is_pinned_too(name: str) -> None:
    """As far as it is installed here: `pip install --require-hashes` refuses what is missing."""
    pinned = pins(name)
    waiting = [Requirement(text) for text in WANTED[name]]
    seen: set[str] = set()
    while waiting:
        wanted = waiting.pop()
        key = f"{canonicalize_name(wanted.name)}[{','.join(sorted(wanted.extras))}]"
        if key in seen:
            continue
        seen.add(key)
        assert canonicalize_name(wanted.name) in pinned, f"{wanted}: `make lock`"
        further = map(Requirement, importlib.metadata.requires(wanted.name) or ())
        waiting += [each for each in further if _counts(each, wanted.extras)]


def _counts(requirement: Requirement, extras: set[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, ""))


def test_nothing_is_pinned_twice_at_two_versions() -> None:
    proxy, run, etcd, test, build = map(pins, ("proxy", "run", "etcd", "test", "build"))
    assert proxy.items() <= run.items() <= etcd.items() <= test.items()
    assert {name: test.get(name, version) for name, version in build.items()} == build


@pytest.mark.parametrize("name", ["scripts/setup", "Makefile"])
def test_nothing_is_taken_from_an_index_without_a_hash(name: str) -> None:
    """What is built is built with what is installed: in an environment of its own pip would fetch the backend."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    for command in re.findall(r"\bpip\b[^&|\n]* (?:install|wheel) [^&|\n]*", text):
        pinned = re.search(r"--require-hashes|--no-deps.*--no-build-isolation|--no-index", command)
        assert pinned, command


def test_nox_takes_nothing_from_an_index_without_a_hash() -> None:
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    installed = re.findall(r'(?:session\.install|"wheel")[^\n]*', text)
    assert len(installed) == 5
    allowed = r"--require-hashes|--no-build-isolation|with_what_is_here|\*\.whl"
    assert all(re.search(allowed, each) for each in installed), installed
