"""Makes decorators for coroutine tests that run each one in its own world."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

CoroutineTest = Callable[..., Awaitable[None]]
_SECONDS: Final = 120


def runs_in(
    enter: Callable[[Path], AbstractAsyncContextManager[Any]],
) -> Callable[[CoroutineTest], CoroutineTest]:
    """Return a decorator of a test. Its first argument is the world that `enter` enters; others are fixtures."""

    def decorate(story: CoroutineTest) -> CoroutineTest:
        _, *others = inspect.signature(story).parameters.values()
        asks_for_folder = any(each.name == "tmp_path" for each in others)

        @functools.wraps(story)
        async def test(*, tmp_path: Path, **arguments: Any) -> None:
            if asks_for_folder:
                arguments["tmp_path"] = tmp_path
            async with asyncio.timeout(_SECONDS), enter(tmp_path) as here:
                await story(here, **arguments)

        folder = inspect.Parameter("tmp_path", inspect.Parameter.KEYWORD_ONLY)
        shown = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in others]
        # pytest finds fixtures and parameters in the signature.
        test.__signature__ = inspect.Signature(shown if asks_for_folder else [*shown, folder])  # type: ignore[attr-defined]
        return test

    return decorate
