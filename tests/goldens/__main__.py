"""Rewrites the golden files: `python -m tests.goldens [NAME …]`, as root. Read the diff before a commit."""

import sys

from tests.goldens.surface import LISTS, collect, golden

for name in sys.argv[1:] or LISTS:
    golden(name).write_text(collect(name), encoding="utf-8")
    sys.stdout.write(f"{name}\n")
