"""Drawings are those of their texts, and every one is shown in a document."""

import hashlib
import json
import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_every_drawing_is_of_its_text() -> None:
    texts = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest() for path in (DOCS / "diagrams").glob("*.d2")}
    assert texts
    for name, digest in texts.items():
        drawn = (DOCS / f"images/{name}.svg").read_text(encoding="utf-8")
        assert f"of docs/diagrams/{name}.d2, sha256 {digest}" in drawn, f"{name}: say `make diagrams`"


def test_the_plot_beside_kube_proxy_is_of_its_figures() -> None:
    measured = DOCS.parent / "bench/beside_kube_proxy.json"
    digest = hashlib.sha256(measured.read_bytes()).hexdigest()
    drawn = (DOCS / "images/beside-kube-proxy.svg").read_text(encoding="utf-8")
    said = "python -m bench plot --beside bench/beside_kube_proxy.json --to docs/images"
    assert f"bench/beside_kube_proxy.json, sha256 {digest}" in drawn, said
    numbers = re.findall(r"<text[^>]*>([\d,.]+)</text>", drawn)
    for panel in json.loads(measured.read_text(encoding="utf-8"))["panels"]:
        for values in panel["lines"].values():
            assert {f"{value:,g}" for value in values.values()} <= set(numbers)


def test_every_drawing_is_shown_somewhere() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (*DOCS.rglob("*.md"), DOCS.parent / "README.md"))
    unseen = [path.name for path in (DOCS / "images").glob("*.svg") if f"images/{path.name})" not in pages]
    assert not unseen
