"""A release is verified as docs/verify.md says: an intact one passes; another key, byte, or sum is refused."""

import json
import subprocess
from pathlib import Path

import pytest
from scripts import signing

FILES = {"vipwire_0.2.0_amd64.deb": b"package", "vipwire_0.2.0_amd64.oci.tar": b"image"}


def done(folder: Path, *command: str) -> bool:
    return not subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode


def verified(folder: Path, key: str) -> bool:
    """Run the commands of the page."""
    signed = done(folder, "minisign", "-V", "-p", key, "-m", signing.SUMS)
    return signed and done(folder, "sha256sum", "--check", "--ignore-missing", signing.SUMS)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    for name in ("vipwire", "another"):
        command = ["minisign", "-G", "-W", "-p", str(tmp_path / f"{name}.pub"), "-s", str(tmp_path / f"{name}.key")]
        subprocess.run(command, check=True, capture_output=True)
    folder = tmp_path / "dist"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    signing.write_provenance(folder, "1" * 40, {"run.lock": b"click==8"})
    listed = "".join(f"{found}  {name}\n" for name, found in signing.sums(folder).items())
    (folder / signing.SUMS).write_text(listed, encoding="utf-8")
    signing.sign(folder, tmp_path / "vipwire.key", "vipwire 0.2.0")
    return folder


def test_an_intact_release_is_verified_by_the_releasers_key_alone(release: Path) -> None:
    assert verified(release, "../vipwire.pub")
    assert not verified(release, "../another.pub")


@pytest.mark.parametrize("name", [*FILES, signing.PROVENANCE, signing.SUMS])
def test_a_changed_file_is_refused(release: Path, name: str) -> None:
    with (release / name).open("ab") as file:
        file.write(b"\n")
    assert not verified(release, "../vipwire.pub")


def test_the_provenance_names_commit_locks_and_every_file(release: Path) -> None:
    made = json.loads((release / signing.PROVENANCE).read_text(encoding="utf-8"))
    assert {each["name"] for each in made["subject"]} == set(FILES)
    commit, lock = made["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": "1" * 40}
    assert lock["uri"] == "requirements/run.lock"
