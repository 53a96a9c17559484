"""The Containerfile and the scripts that run its images, as far as they can be read without an engine."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename
from scripts.images.podspec import Place, UnknownFieldError, containers, run_arguments
from scripts.images.world import ENVIRON, FIELDS
from scripts.wheels import LOCKS, PATH, PLATFORMS
from tests.project.deployed import DEPLOY, OVERLAYS, ROOT, Object, pod_of, recorded

TEXT = re.sub(r"^#.*\n", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
STAGES = dict(re.findall(r"^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", TEXT, re.MULTILINE | re.DOTALL))
PROGRAMS = {"nftables": [], "iptables": ["iptables"], "ipvs": ["ipset", "ipvsadm", "kmod"]}
ORPHANS = {"userspace", "ingress"}
"""Pods with processes that outlive their parents."""
PLACE = Place(Path("/volumes"), FIELDS, ENVIRON)
_PIN = re.compile(r"^([a-z0-9-]+)==([^ ;]+)(?: ; (.+?))? \\$", re.MULTILINE)
_IMAGE_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.7"}


def test_the_context_of_the_build_has_what_is_copied() -> None:
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = re.findall(r"^COPY (?!--from)(.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)
    sources = {source for line in copied for source in shlex.split(line)[:-1]}
    assert sources == {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("target", PROGRAMS)
def test_an_image_has_the_programs_of_its_mode(target: str) -> None:
    installed = re.findall(r"--no-install-recommends ([a-z ]+?) &&", STAGES[target].replace("\\\n", " "))
    assert sorted(name for names in installed for name in names.split()) == PROGRAMS[target]
    assert 'ENTRYPOINT ["vipwire"]' in STAGES["base"]
    assert re.search(r"PATH=/opt/vipwire/bin:\S*/usr/sbin:\S*/sbin", STAGES["base"]), "a Pod runs `vipwire`"


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_pinned_package_has_a_wheel_for_the_platform(platform: str, lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text(encoding="ascii")
    pins = {(name, version) for name, version, when in _PIN.findall(text) if counts(when)}
    for line in PATH.read_text(encoding="ascii").splitlines()[1:]:
        where, source, file, digest = line.split()
        if (where, source) == (platform, lock):
            name, version, _, tags = parse_wheel_filename(file)
            pins -= {(str(name), str(version))}
            assert {tag.platform for tag in tags} == {"any"} or any(PLATFORMS[platform] in t.platform for t in tags)
            assert f"sha256:{digest}" in text, f"{name}: the lock has another file"
    assert pins == set(), "`make lock`"


def counts(when: str) -> bool:
    return not when or Marker(when).evaluate(_IMAGE_PYTHON)


def pod_named(name: str) -> Object:
    if name in OVERLAYS:
        return pod_of(recorded(name))
    file = DEPLOY / name / ("deployment.yaml" if name == "dns" else "daemonset.yaml")
    spec: Object = yaml.safe_load(file.read_text(encoding="utf-8"))["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", [*OVERLAYS, "ingress", "dns"])
def test_scripts_images_runs_every_container_with_the_rights_of_its_pod(name: str) -> None:
    pod = pod_named(name)
    first, others = containers(pod)
    for container in (*first, *others):
        arguments = run_arguments(pod, container, PLACE)
        added = container["securityContext"].get("capabilities", {}).get("add", [])
        assert [each for each in arguments if "cap-add" in each] == [f"--cap-add={right}" for right in added]
        assert ("--privileged" in arguments) == (container["name"] == "prepare")
        assert ("--init" in arguments) == (name in ORPHANS)
        assert "--read-only" in arguments
        assert "$(" not in " ".join(arguments)


def test_keys_of_certificates_stay_in_memory() -> None:
    pod = pod_named("ingress")
    _, (container,) = containers(pod)
    assert "--tmpfs=/run/vipwire-ingress:rw,mode=0777" in run_arguments(pod, container, PLACE)


def test_scripts_images_refuses_a_field_that_it_does_not_know() -> None:
    pod = pod_named("nftables")
    _, others = containers(pod)
    with pytest.raises(UnknownFieldError, match="hostPID"):
        containers(pod | {"hostPID": True})
    with pytest.raises(UnknownFieldError, match="procMount"):
        run_arguments(pod, others[0] | {"securityContext": {"procMount": "Unmasked"}}, PLACE)
