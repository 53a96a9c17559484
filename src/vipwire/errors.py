"""vipwire's exceptions. The class says whose fault the error is, by which the command chooses its reaction.

Invalid Kubernetes objects are not errors: they are `Problem` values (see `model.problem`), because one invalid object
must not stop the others.
"""

import contextlib
from collections.abc import Iterator


class VipwireError(Exception):
    """The base of every error that vipwire raises on purpose. Its text is for the operator."""


class ConfigError(VipwireError):
    """A wrong flag, configuration file or kubeconfig: names the file, the field and the allowed values."""


class UnsupportedError(VipwireError):
    """This machine lacks a feature: the text says which one, and the remedy."""


class DecodeError(VipwireError):
    """Bytes from the kernel, a file or the network do not have the expected format. Raised by codecs only."""


class CommitError(VipwireError):
    """The kernel refused a transaction. A mode that writes in steps may have applied a part of it.

    `transaction` is the request as readable text; `errno` is the kernel's answer, 0 if unknown.
    """

    def __init__(self, message: str, *, transaction: str = "", errno: int = 0) -> None:
        super().__init__(message)
        self.transaction = transaction
        self.errno = errno


class BusyError(CommitError):
    """Another program prevents every transaction at the moment; a retry may succeed."""


class HaltedError(VipwireError):
    """The process ends, so a sync has ended between two transactions."""


@contextlib.contextmanager
def raise_ungrouped() -> Iterator[None]:
    """Raise a VipwireError that tasks raised in an exception group without the group."""
    try:
        yield
    except ExceptionGroup as group:
        raise (told_plainly(group) or group) from None


def told_plainly(error: BaseException) -> VipwireError | None:
    """Return the operator's error: `error` itself, or the first of a group of such errors only; else None.

    Raise the result in an `except` clause, never in `except*`: Python before 3.11.4 makes a group again of errors
    raised there.
    """
    if isinstance(error, BaseExceptionGroup):
        _, others = error.split(VipwireError)
        return told_plainly(error.exceptions[0]) if others is None else None
    return error if isinstance(error, VipwireError) else None
