"""Writes an image as one file: an OCI layout that `docker load` reads too. Equal roots give equal bytes.

Format: OCI image-spec 1.0 (image-layout.md, manifest.md, config.md); manifest.json is Docker's.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

_PREFIX: Final = "application/vnd.oci.image"


@dataclass(frozen=True, slots=True)
class Image:
    """An image's name, platform, and the part of its configuration that a runtime reads."""

    name: str
    architecture: str
    config: Mapping[str, Any]
    labels: Mapping[str, str]
    seconds: int
    """The time of all its files since 1970."""


def layer(root: Path, seconds: int) -> bytes:
    """Pack a folder as an uncompressed layer: by name, owned by root, at one time, no file with setuid."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(root.rglob("*")):
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.mtime, found = seconds, path.lstat().st_mode
            # Neither setuid nor the umask of the building machine.
            entry.mode = 0o755 if found & 0o100 else 0o644
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                archive.addfile(entry)
            elif path.is_dir():
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if found & 0o1000 else 0o755
                archive.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def write(to: Path, image: Image, layers: list[bytes]) -> None:
    """Write the image with its layers, the lowest first, into one file."""
    blobs: dict[str, bytes] = {}

    def described(content: bytes, kind: str, **more: object) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content
        return {"mediaType": f"{_PREFIX}.{kind}", "digest": f"sha256:{digest}", "size": len(content), **more}

    packed = [described(gzip.compress(each, 6, mtime=0), "layer.v1.tar+gzip") for each in layers]
    created = datetime.fromtimestamp(image.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    settings = {
        "created": created,
        "architecture": image.architecture,
        "os": "linux",
        "config": {**image.config, "Labels": image.labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(each).hexdigest()}" for each in layers]},
        "history": [{"created": created, "created_by": "vipwire: scripts/images"} for _ in layers],
    }
    config = described(_json(settings), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_PREFIX}.manifest.v1+json",
        "config": config,
        "layers": packed,
        "annotations": image.labels,
    }
    names = {"org.opencontainers.image.ref.name": image.name, "io.containerd.image.name": image.name}
    platform = {"architecture": image.architecture, "os": "linux"}
    top = described(_json(manifest), "manifest.v1+json", annotations=names, platform=platform)
    docker = {
        "Config": _blob(config),
        "RepoTags": [image.name],
        "Layers": [_blob(each) for each in packed],
    }
    blobs["index.json"] = _json({"schemaVersion": 2, "mediaType": f"{_PREFIX}.index.v1+json", "manifests": [top]})
    blobs["manifest.json"] = _json([docker])
    blobs["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    with tarfile.open(to, "w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in sorted(blobs.items()):
            entry = tarfile.TarInfo(name)
            entry.mtime, entry.mode, entry.size = image.seconds, 0o644, len(content)
            archive.addfile(entry, io.BytesIO(content))


def _blob(described: Mapping[str, Any]) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
