"""The errors that cross a layer. Whose fault it is decides the class, so that the shell knows what to do.

Invalid Kubernetes objects are not errors: they are `Problem` values (see `model.problem`), because one broken
object must never stop the others.
"""


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
