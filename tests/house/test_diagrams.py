"""Drawings are those of their texts, and every one is shown in a document."""

import hashlib
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_drawing_is_of_its_text() -> None:
    texts = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in (DOCS / "diagrams").glob("*.d2")}
    assert texts
    for name, digest in texts.items():
        drawn = (DOCS / f"images/{name}.svg").read_text(encoding="utf-8")
        assert f"of docs/diagrams/{name}.d2, sha256 {digest}" in drawn, f"{name}: say `make diagrams`"


def test_every_drawing_is_shown_somewhere() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (*DOCS.rglob("*.md"), DOCS.parent / "README.md"))
    unseen = [path.name for path in (DOCS / "images").glob("*.svg") if f"images/{path.name})" not in pages]
    assert not unseen
