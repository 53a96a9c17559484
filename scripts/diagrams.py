"""Draws docs/diagrams/*.d2 into docs/images/: `python scripts/diagrams.py`, or `make diagrams`.

D2 (MPL-2.0, from npm, version in docs/diagrams/package-lock.json) draws. The repository contains the drawings, so
that reading needs no tool; a test finds outdated ones.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "docs/diagrams"


def main() -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            sys.exit(f"drawing needs {program} (Debian's packages: nodejs, npm)")
    if not (FOLDER / "node_modules").exists():
        subprocess.run(["npm", "ci", "--silent", "--no-fund", "--no-audit"], cwd=FOLDER, check=True)
    names = sorted(path.stem for path in FOLDER.glob("*.d2"))
    subprocess.run(["node", "draw.mjs", "../images", *names], cwd=FOLDER, check=True)


if __name__ == "__main__":
    main()
