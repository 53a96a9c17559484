"""The images: what is in them without a build, equal bytes of a file, and each Pod of deploy/ run from them."""

import gzip
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from scripts.images import oci, packages
from scripts.images.build import ALL, KINDS, REPOSITORY
from tests.project.deployed import OVERLAYS, ROOT, containers, pod_of, recorded

from vipwire import __version__
from vipwire.modes.registry import list_specs

IMAGE = oci.Image("registry.example/vipwire:7", "arm64", {"User": "1"}, {"title": "vipwire"}, 86400)
PACKAGES = {"iptables-restore": "iptables", "nft": "nftables", "ipvsadm": "ipvsadm"}


def test_the_proxys_image_has_the_programs_of_every_mode() -> None:
    """So whichever mode runs can remove what another left."""
    tools = {tool.name for spec in list_specs() for tool in spec.tools if tool.name != "bpftool"}
    assert {PACKAGES[name] for name in tools} <= set(packages.PROXY)
    assert [kind.suffix for kind in KINDS] == ["", "-all"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_mode_runs_from_the_proxys_image(overlay: str) -> None:
    pod = pod_of(recorded(overlay))
    assert {each["image"] for each in containers(pod)} == {f"{REPOSITORY}:{__version__}"}
    assert all(each["securityContext"]["runAsUser"] == 0 for each in containers(pod)), "the image's user is another"


def test_an_image_is_the_same_bytes_whatever_the_umask_and_the_clock(tmp_path: Path) -> None:
    for number, name in enumerate(("first", "second")):
        root = tmp_path / name / "root"
        root.mkdir(parents=True)
        (root / "program").write_text("#!/bin/sh\n")
        (root / "program").chmod(0o4755 if number else 0o700)
        (root / "link").symlink_to("program")
        oci.write(tmp_path / f"{number}.tar", IMAGE, [oci.layer(root, 86400)])
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()
    with tarfile.open(tmp_path / "0.tar") as file:
        index = json.load(file.extractfile("index.json") or io.BytesIO())
        (named,) = index["manifests"]
        manifest = json.load(file.extractfile(f"blobs/{named['digest'].replace(':', '/')}") or io.BytesIO())
        layer = file.extractfile(f"blobs/{manifest['layers'][0]['digest'].replace(':', '/')}")
        assert layer is not None
        with tarfile.open(fileobj=gzip.open(layer)) as packed:
            modes = {entry.name: (entry.mode, entry.uid, entry.mtime) for entry in packed}
    assert named["platform"] == {"architecture": "arm64", "os": "linux"}
    assert modes == {"program": (0o755, 0, 86400), "link": (0o777, 0, 86400)}, "nothing with setuid"


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.timeout(1200)
def test_every_pod_runs_from_the_images_that_are_built_here() -> None:
    """Not ipvs, which this kernel need not have."""
    command = [sys.executable, "-m", "scripts.images"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{ALL}: " in done.stdout
