"""The Containerfile, as far as it can be read without an engine: its stages, what it copies, what runs."""

import fnmatch
import re
import shlex
from dataclasses import dataclass, field

import pytest
from tests.project.deployed import DEPLOY, OVERLAYS, ROOT

TEXT = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
INSTRUCTIONS = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
TARGETS = dict.fromkeys(("nftables", "ebpf"), "nftables") | {
    "iptables": "iptables",
    "ipvs": "ipvs",
    "userspace": "iptables",
}
PROGRAMS = {"nftables": set(), "iptables": {"iptables"}, "ipvs": {"iptables", "ipset", "ipvsadm", "kmod"}}


@dataclass
class Stage:
    name: str
    parent: str
    lines: list[tuple[str, str]] = field(default_factory=list)


def stages() -> dict[str, Stage]:
    """Part the file into its stages; an instruction goes on after a backslash."""
    found: dict[str, Stage] = {}
    text = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ")
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        assert word in INSTRUCTIONS, line
        if word == "FROM":
            parent, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]  # or it fails
            found[name] = stage = Stage(name, parent)
        elif word == "ARG":
            assert not found, "what stands before the first stage counts for all"
        else:
            stage.lines.append((word, " ".join(rest.split())))
    return found


def ancestry(name: str) -> list[Stage]:
    """List a stage and those that it is made from."""
    found, every = [], stages()
    while name in every:
        found.append(every[name])
        name = every[name].parent
    return found


def test_what_is_copied_is_there_and_not_left_out_of_the_context() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    kept = {line[1:] for line in ignored if line.startswith("!")}
    sources = []
    for stage in stages().values():
        for word, rest in stage.lines:
            if word == "COPY" and "--from=" not in rest:
                sources += shlex.split(rest)[:-1]
            elif word == "COPY":
                assert re.match(r"--from=(\S+) ", rest)[1] in stages()  # type: ignore[index]  # or it fails
    assert set(sources) == kept
    assert all((ROOT / source).exists() for source in sources)


def test_what_the_package_is_built_from_is_copied() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    copied = " ".join(rest for word, rest in stages()["build"].lines if word == "COPY").split()
    named = re.findall(r'^(?:readme|license-files|packages) = \[?"([^"]+)"', project, re.MULTILINE)
    assert len(named) == 3
    assert all(any(fnmatch.fnmatch(path, f"{source}*") for source in copied) for path in named)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_image_has_the_programs_of_its_mode_and_starts_vipwire(overlay: str) -> None:
    lines = [line for stage in ancestry(TARGETS[overlay]) for line in stage.lines]
    installed = re.findall(r"--no-install-recommends ([a-z ]+?) &&", " ".join(rest for _, rest in lines))
    assert {name for names in installed for name in names.split()} == PROGRAMS[TARGETS[overlay]]
    assert ("ENTRYPOINT", '["vipwire"]') in lines
    (path,) = (re.match(r"PATH=(\S+)", rest)[1] for word, rest in lines if word == "ENV")  # type: ignore[index]
    assert path.split(":")[0] == "/opt/vipwire/bin", "the Pods say `vipwire` without a path"
    assert {"/usr/sbin", "/sbin"} <= set(path.split(":")), "where iptables is"
