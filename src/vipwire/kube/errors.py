"""Errors of requests to an API server."""

from typing import Any, Final

from vipwire.errors import VipwireError


class ApiError(Exception):
    """The API server refuses a request: 404, the object is missing; 409, its state has changed."""

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """Return the error as a Status, the body of an answer."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,  # also if empty: clients read it without checking
            "code": self.code,
        }


class UnreachableError(VipwireError):
    """No API server answers."""


class OtherReplicaElectedError(VipwireError):
    """Another replica is the elected writer: the request was not sent."""


REQUEST_ERRORS: Final = (ApiError, UnreachableError)
