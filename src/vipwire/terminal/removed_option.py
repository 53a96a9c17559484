"""Refuses an option of an earlier version with an error that names its replacement."""

from collections.abc import Callable
from typing import Any

import click


def refuse_option(option: str, instead: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            raise click.UsageError(f"{option} was removed: {instead}", ctx)

    return callback
