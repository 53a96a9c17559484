"""Prints errors, warnings and notes of commands on stderr, one line each, and sets the exit status.

Every command ends the same way: 0 when it did its work, 2 when its command line is wrong, 1 when anything else
failed. The commands that compare (`diff`, `explain`, `check`) keep 1 for what they found, as diff(1) does, and end
with 2 when they could not look.
"""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from vipwire.errors import VipwireError, ungrouped
from vipwire.model.text import visible, visible_lines

if TYPE_CHECKING:
    import click

FAILED: Final = 1
MISUSED: Final = 2


def say(text: str) -> None:
    """Print lines that hold parts of objects."""
    _echo(visible_lines(text))


def note(text: str) -> None:
    """Print a remark on stderr, where it does not mix with a result."""
    _echo(visible_lines(text), err=True)


def warn(text: str) -> None:
    """Print a warning."""
    _echo(f"warning: {visible(text)}", err=True)


def complain(error: VipwireError | str) -> None:
    """Print an error: one line for each line of its text."""
    for line in str(error).splitlines():
        _echo(f"error: {visible(line)}", err=True)


@contextlib.contextmanager
def plain_errors(status: int = FAILED) -> Iterator[None]:
    """Print what an operator can do about an error, and end the command with an exit status, without a traceback."""
    try:
        with ungrouped():
            yield
    except VipwireError as error:
        complain(error)
        raise SystemExit(status) from error
    except PermissionError as error:
        complain(f"{error.filename or 'this'}: {error.strerror}: run it as root, or with CAP_NET_ADMIN")
        raise SystemExit(status) from error


def usage_error(error: "click.ClickException") -> int:
    """Print an error of click's in our style; return the exit status."""
    if (context := getattr(error, "ctx", None)) is not None:  # of a UsageError
        _echo(context.get_usage(), err=True)
        _echo(f"Try `{context.command_path} --help`.", err=True)
    complain(error.format_message())
    return error.exit_code


def _echo(text: str, *, err: bool = False) -> None:
    import click  # noqa: PLC0415  # a proxy that starts well prints nothing

    click.echo(text, err=err)
