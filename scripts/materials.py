"""Lists the materials of artefacts as CycloneDX 1.5: Python's packages, and Debian's.

Each Debian package, tree and image contains the list of its own materials. vipwire.cdx.json of a release joins the
lists that its files contain.
"""

import hashlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote, unquote

from scripts.interpreters import run

from vipwire import __version__

NAME: Final = "sbom.cdx.json"
JOINED: Final = "vipwire.cdx.json"
Component: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Package:
    """A package of Debian, as a file."""

    name: str
    version: str
    architecture: str
    file: Path

    def component(self) -> Component:
        path = f"deb/debian/{self.name}@{quote(self.version)}?arch={self.architecture}"
        return _library(self.name, self.version, path, hashlib.sha256(self.file.read_bytes()).hexdigest())


def read_package(file: Path) -> Package:
    fields = run("dpkg-deb", "--show", "--showformat=${Package} ${Version} ${Architecture}", file)
    name, version, architecture = fields.split()
    return Package(name, version, architecture, file)


def python_components(libraries: Path, report: Path) -> list[Component]:
    """List the packages in a folder, with the wheels of pip's report; raise SystemExit if their versions differ."""
    installed = json.loads(report.read_text(encoding="utf-8"))["install"]
    origins = {_normal(each["metadata"]["name"]): each["download_info"] for each in installed}
    found = []
    for info in sorted(libraries.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        if name == "vipwire":
            continue
        origin = origins[_normal(name)]
        file = unquote(origin["url"].rpartition("/")[2])
        if file.split("-")[1] != version:
            raise SystemExit(f"{libraries} has {name} {version}, and pip installed {file}")
        path = f"pypi/{_normal(name)}@{quote(version)}?file_name={quote(file)}"
        found.append(_library(name, version, path, origin["archive_info"]["hashes"]["sha256"]))
    return found


def write(to: Path, name: str, components: Iterable[Component], **more: object) -> None:
    """Write the list of an artefact."""
    main = {"type": "application", "name": name, "version": __version__, "bom-ref": "vipwire"}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": [*components],
        **more,
    }
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def join(folder: Path, sums: Mapping[str, str]) -> None:
    """Write the list of a release: its files with their sums, and the materials that the files contain."""
    libraries: dict[str, Component] = {}
    files, dependencies = [], []
    for name, found in sums.items():
        contained = contents(folder / name)
        libraries |= {each["bom-ref"]: each for each in contained}
        hashes = [{"alg": "SHA-256", "content": found}]
        files.append({"type": "file", "name": name, "bom-ref": name, "hashes": hashes})
        dependencies.append({"ref": name, "dependsOn": [each["bom-ref"] for each in contained]})
    write(folder / JOINED, "vipwire", [*files, *libraries.values()], dependencies=dependencies)


def contents(file: Path) -> list[Component]:
    """Return the materials that an artefact lists inside; nothing for a file without a list."""
    for archive in _archives(file):
        for entry in archive:
            if entry.isfile() and Path(entry.name).name == NAME and (content := archive.extractfile(entry)):
                listed: list[Component] = json.load(content)["components"]
                return listed
    return []


def _archives(file: Path) -> Iterator[tarfile.TarFile]:
    if file.name.endswith(".oci.tar"):
        with tarfile.open(file) as image:
            for entry in image:
                content = image.extractfile(entry)
                if content and content.read(2) == b"\x1f\x8b":  # gzip: a layer
                    content.seek(0)
                    with tarfile.open(fileobj=content, mode="r|gz") as layer:
                        yield layer
    elif file.suffix == ".deb":
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", file], check=True, capture_output=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as package:
            yield package
    elif "-linux-" in file.name:
        with tarfile.open(file, mode="r|gz") as tree:
            yield tree


def _library(name: str, version: str, path: str, found: str) -> Component:
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:{path}",
        "bom-ref": f"pkg:{path}",
        "hashes": [{"alg": "SHA-256", "content": found}],
    }


def _normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()
