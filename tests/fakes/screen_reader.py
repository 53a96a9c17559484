"""A page as a screen reader and keyboard find it, by the browser's accessibility tree, and its contrast."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.fakes.browser import Page

CONTROLS: Final = frozenset({"button", "link", "textbox", "searchbox", "combobox", "listbox", "option", "menuitem"})
LANDMARKS: Final = frozenset({"banner", "main", "navigation"})
FAINT: Final = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
"""Texts with less contrast than WCAG 2.2 level AA."""
_FOCUSED: Final = """(() => {
  const at = document.activeElement;
  const shown = at.getBoundingClientRect();
  const seen = shown.width > 0 && shown.height > 0 && at.matches(":focus-visible");
  return [at.id || at.getAttribute("href") || at.textContent.trim(), seen];
})()"""


async def tree(page: Page) -> Sequence[tuple[str, str]]:
    """Return role and name of every node of the accessibility tree, in order."""
    made: dict[str, Any] = await page.call("Accessibility.getFullAXTree")
    nodes = (node for node in made["nodes"] if not node.get("ignored"))
    return [(node.get("role", {}).get("value", ""), node.get("name", {}).get("value", "")) for node in nodes]


async def complaints(page: Page) -> list[str]:
    """Return accessibility problems of the visible view."""
    met = await tree(page)
    roles = [role for role, _ in met]
    missing = [f"no {role}" for role in LANDMARKS if roles.count(role) != 1]
    nameless = [
        f"a {role} without a name" for role, name in met if role in CONTROLS | {"table", "dialog"} and not name
    ]
    headings = await page.value(
        "[...document.querySelectorAll('h1, h2, h3, h4')].filter((each) => each.checkVisibility())"
        ".map((each) => Number(each.tagName[1]))"
    )
    jumps = [f"h{now} behind h{before}" for before, now in pairwise(headings) if now > before + 1]
    first = [] if headings[:1] == [1] and headings.count(1) == 1 else [f"headings begin with {headings[:3]}"]
    return [*missing, *nameless, *jumps, *first]


async def tabbed(page: Page, times: int) -> list[tuple[str, bool]]:
    """Press Tab; return the focused element each time, and whether its focus is visible."""
    found = []
    for _ in range(times):
        for kind in ("keyDown", "keyUp"):
            await page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        found.append(tuple(await page.value(_FOCUSED)))
    return found
