"""What a screen reader and a keyboard find on a page, by the browser's own tree, and what eyes can read of it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.fakes.browser import Page

CONTROLS: Final = frozenset({"button", "link", "textbox", "searchbox", "combobox", "listbox", "option", "menuitem"})
LANDMARKS: Final = frozenset({"banner", "main", "navigation"})
FAINT: Final = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
"""Texts whose contrast is below what WCAG 2.2 asks for at level AA."""
_FOCUSED: Final = """(() => {
  const at = document.activeElement;
  const shown = at.getBoundingClientRect();
  const seen = shown.width > 0 && shown.height > 0 && at.matches(":focus-visible");
  return [at.id || at.getAttribute("href") || at.textContent.trim(), seen];
})()"""


async def tree(page: Page) -> Sequence[tuple[str, str]]:
    """Give role and name of every node that a reader meets, in order."""
    made: dict[str, Any] = await page.call("Accessibility.getFullAXTree")
    nodes = (node for node in made["nodes"] if not node.get("ignored"))
    return [(node.get("role", {}).get("value", ""), node.get("name", {}).get("value", "")) for node in nodes]


async def complaints(page: Page) -> list[str]:
    """Say what a reader would miss in the view that is shown."""
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
    """Press Tab; give where the focus is each time, and whether it can be seen there."""
    found = []
    for _ in range(times):
        for kind in ("keyDown", "keyUp"):
            await page.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        found.append(tuple(await page.value(_FOCUSED)))
    return found
