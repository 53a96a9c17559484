"""Draw docs/diagrams/*.d2 into docs/images/: `python scripts/diagrams.py`, or `make diagrams`.

D2 draws (MPL-2.0, by npm, at the version in docs/diagrams/package-lock.json). The drawings are kept, so that
documents need no tool to be read; a test tells when one is older than its text.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "docs/diagrams"


def main() -> None:
    """Fetch D2 if it is not there, and draw all."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            sys.exit(f"drawing needs {program} (Debian's packages: nodejs, npm)")
    if not (FOLDER / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent", "--no-fund", "--no-audit"], cwd=FOLDER, check=True)
    names = sorted(path.stem for path in FOLDER.glob("*.d2"))
    subprocess.run(["node", "draw.mjs", "../images", *names], cwd=FOLDER, check=True)


if __name__ == "__main__":
    main()
