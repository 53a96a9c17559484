"""MkDocs' hooks for `make site`: how documents differ on the site from their Markdown.

Documents of the root are pages in project/. A link to a file that is no page shows its text only. A link that shows a
document's file name shows its title.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

_LINK: Final = re.compile(r'<a href="([^":#]+)((?:#[^"]*)?)">[^<>]*\.md</a>')
_CELL: Final = re.compile(r"<td>.*?</td>", re.DOTALL)
_REFERENCE: Final = re.compile(r"\[([^\[\]]*)\]\(([^)\s]+)([^)]*)\)")
_FENCE: Final = re.compile(r"^( *```.*?^ *```)$", re.DOTALL | re.MULTILINE)
ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
_pages: list[Any] = []


def on_files(files: Any, *, config: Any) -> Any:
    file = type(next(iter(files)))
    for name in PROJECT:
        files.append(file.generated(config, f"project/{name}", abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrite links to pages of the site."""
    del config, files
    return relinked(markdown, page.file.src_uri)


def relinked(text: str, page: str) -> str:
    folder = posixpath.dirname(page.removeprefix("project/") if page.startswith("project/") else f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        label, target, title = found.groups()
        path, sharp, anchor = target.partition("#")
        if not path or "://" in path:
            return found[0]
        there = _page_of(posixpath.normpath(posixpath.join(folder, path)))
        if there is None:
            return label
        return f"[{label}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{sharp}{anchor}{title})"

    parts = _FENCE.split(text)
    return "".join(part if number % 2 else _REFERENCE.sub(link, part) for number, part in enumerate(parts))


def _page_of(path: str) -> str | None:
    if path in PROJECT:
        return f"project/{path}"
    return path.removeprefix("docs/") if path.startswith("docs/") and (ROOT / path).is_file() else None


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Keep the pages: their titles are known when all are read."""
    del config, files
    _pages[:] = nav.pages
    return nav


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Show titles where links show files, and a plain | in a table's code, which other Markdown readers unescape."""
    del config
    titles = {each.url: each.title for each in _pages}
    here = posixpath.dirname(page.url)

    def titled(link: re.Match[str]) -> str:
        url = posixpath.normpath(posixpath.join(here, unquote(link[1])))
        title = titles.get(url)
        return f'<a href="{link[1]}{link[2]}">{title}</a>' if title else link[0]

    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), _LINK.sub(titled, output))
