"""The errors that cross a layer. Whose fault it is decides the class, so that the shell knows what to do.

Invalid Kubernetes objects are not errors: they are `Problem` values (see `model.problem`), because one broken
object must never stop the others.
"""

import contextlib
from collections.abc import Iterator


class VipwireError(Exception):
    """The base of every error that vipwire raises on purpose. Its text is meant for an operator."""


class ConfigError(VipwireError):
    """The operator's flags, configuration file or kubeconfig: names the file, the field and what is allowed."""


class UnsupportedError(VipwireError):
    """This machine cannot do what was asked: says what is missing and what to do about it."""


class DecodeError(VipwireError):
    """Bytes from the kernel, a file or the network are not what their format says. Raised by codecs only."""


class CommitError(VipwireError):
    """The kernel refused a transaction, so that it still holds what it held before.

    `transaction` is what was sent, as text a person can read; `errno` is the kernel's answer, 0 if unknown.
    """

    def __init__(self, message: str, *, transaction: str = "", errno: int = 0) -> None:
        super().__init__(message)
        self.transaction = transaction
        self.errno = errno


@contextlib.contextmanager
def ungrouped() -> Iterator[None]:
    """Raise a VipwireError as itself where tasks that ran together raised it in a group."""
    try:
        yield
    except ExceptionGroup as group:
        raise (told_plainly(group) or group) from None


def told_plainly(error: BaseException) -> VipwireError | None:
    """Find the error that an operator is told: itself, or the first of a group of none but such; else None.

    What is found has to be raised in an `except` clause, never in `except*`: Python before 3.11.4 makes a group again
    of what is raised there.
    """
    if isinstance(error, BaseExceptionGroup):
        _, others = error.split(VipwireError)
        return told_plainly(error.exceptions[0]) if others is None else None
    return error if isinstance(error, VipwireError) else None
