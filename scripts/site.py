"""Decides how documents differ on the site (`make site`) from their Markdown: MkDocs calls this for each page.

In Markdown a link shows the file it leads to, which says most to who reads the files. Who reads pages gets its title.
"""

import posixpath
import re
from typing import Any, Final
from urllib.parse import unquote

_LINK: Final = re.compile(r'<a href="([^":#]+)((?:#[^"]*)?)">[^<>]*\.md</a>')
_CELL: Final = re.compile(r"<td>.*?</td>", re.DOTALL)
_pages: list[Any] = []


def on_nav(nav: Any, *, config: Any, files: Any) -> Any:
    """Keep the pages: their titles are known when all of them are read."""
    del config, files
    _pages[:] = nav.pages
    return nav


def on_post_page(output: str, *, page: Any, config: Any) -> str:
    """Show titles where links show files, and a plain | in a table's code: other readers of Markdown unescape it."""
    del config
    titles = {each.url: each.title for each in _pages}
    here = posixpath.dirname(page.url)

    def titled(link: re.Match[str]) -> str:
        url = posixpath.normpath(posixpath.join(here, unquote(link[1])))
        title = titles.get(url)
        return f'<a href="{link[1]}{link[2]}">{title}</a>' if title else link[0]

    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), _LINK.sub(titled, output))
