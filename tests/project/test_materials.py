"""The lists of materials: what is inside of an artefact, with versions and sums, as CycloneDX's schema allows."""

import gzip
import importlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from scripts import materials
from scripts.interpreters import run

WHEEL = "click-8.1.0-py3-none-any.whl"


def installed(folder: Path, version: str = "8.1.0") -> list[materials.Component]:
    (folder / f"click-{version}.dist-info").mkdir(parents=True)
    origin = {"url": f"https://files.example/{WHEEL}", "archive_info": {"hashes": {"sha256": "1" * 64}}}
    report = folder / "report.json"
    report.write_text(json.dumps({"install": [{"metadata": {"name": "Click"}, "download_info": origin}]}))
    return materials.python_components(folder, report)


def packed(folder: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, ".")
    return data.getvalue()


def test_another_version_than_pip_installed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has click 8\.2\.0, and pip installed click-8\.1\.0"):
        installed(tmp_path, "8.2.0")


def test_a_release_lists_the_contents_of_its_files(tmp_path: Path) -> None:
    """A Debian package, a tree and an image with the same library: it is listed once, and each file names it."""
    stage, dist = tmp_path / "stage", tmp_path / "dist"
    listed = installed(tmp_path / "libraries")
    materials.write(stage / "share" / materials.NAME, "vipwire", listed)
    (stage / "DEBIAN").mkdir()
    (stage / "DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n"
    )
    dist.mkdir()
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", stage, dist / "a.deb")
    (dist / "b-linux-amd64.tar.gz").write_bytes(gzip.compress(packed(stage)))
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/config").write_text("{}")
    (tmp_path / "blobs/layer").write_bytes(gzip.compress(packed(stage)))
    (dist / "c.oci.tar").write_bytes(packed(tmp_path / "blobs"))
    (dist / "d.whl").touch()
    names = [path.name for path in sorted(dist.iterdir())]
    materials.join(dist, dict.fromkeys(names, "2" * 64))
    text = (dist / materials.JOINED).read_text(encoding="utf-8")
    validation = importlib.import_module("cyclonedx.validation.json")  # it compiles 38 grammars: eight seconds of CPU
    assert validation.JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None
    made = json.loads(text)
    assert [each["bom-ref"] for each in made["components"]] == [*names, listed[0]["bom-ref"]]
    inside = {each["ref"]: each["dependsOn"] for each in made["dependencies"]}
    assert inside == {key: [f"pkg:pypi/click@8.1.0?file_name={WHEEL}"] for key in names[:3]} | {"d.whl": []}
