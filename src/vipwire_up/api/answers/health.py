"""Health pages, as kube-apiserver writes them: /livez and /healthz say that it answers, /readyz that its parts run.

    /readyz              200 ok, or 500 with all checks
    /readyz?verbose      all checks in any case; exclude=NAME leaves one out
    /readyz/NAME         one check

Why a part does not run is told to those who have a role; all others read `reason withheld`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from vipwire_up.api.objects.errors import no_such_page

_PAGES: Final = ("healthz", "livez", "readyz")
_PING: Final = {"ping": ""}


@dataclass(frozen=True, slots=True)
class Health:
    """An answer in plain text."""

    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """A request for health. `trusted` callers may read reasons."""

    verbose: bool
    left_out: Collection[str]
    trusted: bool


def read_health(path: str, asked: Question, troubles: Mapping[str, str]) -> Health | None:
    """Answer a health page, None for other pages; raise ApiError 404 for a check that is none.

    `troubles` tells of each part what is wrong, "" for nothing.
    """
    page, _, one = path.strip("/").partition("/")
    if page not in _PAGES:
        return None
    parts = {f"part-{name.lower().replace(' ', '-')}": why for name, why in troubles.items()}
    checks = _PING | (parts if page == "readyz" else {})
    if one and one not in checks:
        raise no_such_page()
    if one:
        checks = {one: checks[one]}
    checks = {name: why for name, why in checks.items() if name not in asked.left_out}
    failed = any(checks.values())
    if not failed and not asked.verbose:
        return Health(200, "ok")
    lines = [_line(name, why, trusted=asked.trusted) for name, why in checks.items()]
    return Health(500 if failed else 200, "\n".join([*lines, f"{page} check {'failed' if failed else 'passed'}", ""]))


def _line(name: str, why: str, *, trusted: bool) -> str:
    if not why:
        return f"[+]{name} ok"
    return f"[-]{name} failed: {why if trusted else 'reason withheld'}"
