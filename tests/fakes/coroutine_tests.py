"""Makes decorators for coroutine tests that run each one in its own world."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

Test = Callable[..., None]


def runs_in(
    play: Callable[[Path, Callable[[Any], Awaitable[None]]], None],
) -> Callable[[Callable[..., Awaitable[None]]], Test]:
    """Return a decorator of a test. Its first argument is the world that `play` makes; others are fixtures."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Test:
        _, *others = inspect.signature(story).parameters.values()
        asks_for_folder = any(each.name == "tmp_path" for each in others)

        @functools.wraps(story)
        def test(*, tmp_path: Path, **arguments: Any) -> None:
            if asks_for_folder:
                arguments["tmp_path"] = tmp_path
            play(tmp_path, lambda here: story(here, **arguments))

        folder = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
        # pytest finds fixtures and parameters in the signature.
        test.__signature__ = inspect.Signature(shown if asks_for_folder else [*shown, folder])  # type: ignore[attr-defined]
        return test

    return decorate
