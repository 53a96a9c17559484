"""What the site shows otherwise than the Markdown it is made of."""

import posixpath
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import yaml
from scripts import site

DOCS = site.ROOT / "docs"
SOURCES = {f"project/{name}": site.ROOT / name for name in site.PROJECT} | {
    str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))
}


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as MkDocs and GitHub make them."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", SOURCES[page].read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\]\([^)]*\)", "", each)).strip().lower().replace(" ", "-")
        for each in headings
    }


def links(page: str) -> Iterator[tuple[str, str]]:
    """Yield where the links of a page of the site lead: the page or picture, and the anchor."""
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", site.relinked(SOURCES[page].read_text(), page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor


@pytest.mark.parametrize("page", SOURCES)
def test_no_link_of_the_site_is_broken(page: str) -> None:
    for there, anchor in links(page):
        assert there in SOURCES or (DOCS / there).is_file(), there
        assert not anchor or anchor in anchors(there), f"{there}#{anchor}"


def test_the_menu_has_every_page() -> None:
    text = re.sub(r"!!python\S*", "", (site.ROOT / "mkdocs.yml").read_text())
    assert set(re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load(text)["nav"]))) == set(SOURCES)


def test_a_link_to_a_file_that_is_no_page_shows_its_text() -> None:
    text = "[deploy/](../deploy), [lab](lab.md#a), [README](../README.md), [b](https://b.org/)\n```text\n[x](../y)\n```\n"
    shown = "deploy/, [lab](lab.md#a), [README](project/README.md), [b](https://b.org/)\n```text\n[x](../y)\n```\n"
    assert site.relinked(text, "deploy.md") == shown


def test_a_link_shows_the_title_of_its_page_instead_of_its_file() -> None:
    lab, modes = SimpleNamespace(url="lab.html", title="The lab"), SimpleNamespace(url="modes/a.html", title="Mode A")
    site.on_nav(SimpleNamespace(pages=[lab, modes]), config=None, files=None)
    text = (
        '<a href="../lab.html">../lab.md</a> <a href="../lab.html#one">lab.md</a> <a href="a.html">this</a> '
        '<a href="../DESIGN.md">../DESIGN.md</a> <a href="https://other/lab.html">lab.md</a>'
    )
    assert site.on_post_page(text, page=modes, config=None) == (
        '<a href="../lab.html">The lab</a> <a href="../lab.html#one">The lab</a> <a href="a.html">this</a> '
        '<a href="../DESIGN.md">../DESIGN.md</a> <a href="https://other/lab.html">lab.md</a>'
    )


def test_a_pipe_in_a_cell_is_not_escaped() -> None:
    said = site.on_post_page(
        r"<td><code>a \| b</code></td> <code>c \| d</code>", page=SimpleNamespace(url=""), config=None
    )
    assert said == r"<td><code>a | b</code></td> <code>c \| d</code>"
