"""What the site shows otherwise than the Markdown it is made of."""

from types import SimpleNamespace

from scripts import site


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
