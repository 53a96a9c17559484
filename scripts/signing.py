"""Says where a release comes from, and signs its sums.

The statement of provenance is in-toto's (Statement v1) with SLSA's predicate (provenance v1): the commit, the locks,
and the sum of each file. The signature over SHA256SUMS is minisign's.
"""

import hashlib
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PROVENANCE: Final = "vipwire.provenance.json"
SUMS: Final = "SHA256SUMS"


def sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its name."""
    files = (path for path in sorted(folder.iterdir()) if path.name != SUMS)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_provenance(folder: Path, commit: str, locks: Mapping[str, bytes]) -> None:
    """Write which commit and which locks the files of a folder are built from."""
    sources = [{"uri": "git+vipwire", "digest": {"gitCommit": commit}}]
    sources += [
        {"uri": f"requirements/{name}", "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for name, content in sorted(locks.items())
    ]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": found}} for name, found in sums(folder).items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "https://vipwire.io/make-release/v1",
                "externalParameters": {"commit": commit},
                "resolvedDependencies": sources,
            },
            "runDetails": {"builder": {"id": "https://vipwire.io/releaser"}},
        },
    }
    (folder / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n", encoding="utf-8")


def sign(folder: Path, key: Path, comment: str) -> None:
    """Sign the sums; minisign asks for the key's password. Raise CalledProcessError if it fails."""
    subprocess.run(["minisign", "-S", "-s", key, "-m", folder / SUMS, "-t", comment], check=True)
