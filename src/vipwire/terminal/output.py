"""Prints errors, warnings and notes of commands on stderr, one line each, and sets the exit status.

The exit status is 0 on success, 2 for a wrong command line, 1 for any other error. Commands that compare (`diff`,
`explain`, `check`) use 1 for differences, as diff(1) does, and 2 for all errors.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from vipwire.errors import VipwireError, raise_ungrouped
from vipwire.model.text import escape_invisible, visible_lines

FAILED: Final = 1
MISUSED: Final = 2


def print_line(text: str) -> None:
    """Print lines to stdout, with control characters escaped."""
    _print_text(visible_lines(text))


def print_note(text: str) -> None:
    """Print a remark on stderr, apart from the result."""
    _print_text(visible_lines(text), err=True)


def print_warning(text: str) -> None:
    _print_text(f"warning: {escape_invisible(text)}", err=True)


def print_error(error: VipwireError | str) -> None:
    """Print an error: one line for each line of its text."""
    for line in str(error).splitlines():
        _print_text(f"error: {escape_invisible(line)}", err=True)


@contextlib.contextmanager
def plain_errors(status: int = FAILED) -> Iterator[None]:
    """Print a VipwireError or PermissionError without a traceback, and exit with `status`."""
    try:
        with raise_ungrouped():
            yield
    except VipwireError as error:
        print_error(error)
        raise SystemExit(status) from error
    except PermissionError as error:
        print_error(
            f"{error.filename or 'this command'}: {error.strerror}: run the command as root, or with CAP_NET_ADMIN"
        )
        raise SystemExit(status) from error


def _print_text(text: str, *, err: bool = False) -> None:
    import click  # noqa: PLC0415  # a proxy that starts well prints nothing

    click.echo(text, err=err)
