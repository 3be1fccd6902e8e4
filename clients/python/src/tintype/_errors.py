"""The errors of the client, after the codes of the API."""

from __future__ import annotations

from typing import Any


class TintypeError(Exception):
    """Any error of this package."""


class NoAnswer(TintypeError):
    """No connection, or no complete answer of the API. Never raised after a submit that may have been accepted."""


class NotFinished(TintypeError):
    """The task is not terminal after the time limit. It goes on; `get` it later by its `task_id`."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"{task_id} is not finished in time; get it later, or contact support with this id")
        self.task_id = task_id


class TaskFailed(TintypeError):
    """The task failed. Its credits are refunded."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(f"{task_id}: {reason}")
        self.task_id = task_id
        self.reason = reason


class SubmitUnanswered(TintypeError):
    """A submit got no answer, and the list of tasks does not tell for certain which task it made.

    `candidates` are the ids of the tasks that it may have made; `None` if the list could not be read.
    """

    def __init__(self, message: str, candidates: list[str] | None) -> None:
        super().__init__(message)
        self.candidates = candidates


class ApiError(TintypeError):
    """The API answered with an error. `code` is stable; `request_id` is for support."""

    def __init__(self, status: int, code: str, message: str, request_id: str | None, retry_after: float | None) -> None:
        super().__init__(f"{message} ({code}, request {request_id})")
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after


class Unauthorized(ApiError):
    """`UNAUTHORIZED`: the key is missing, wrong, disabled, expired or revoked."""


class InvalidRequest(ApiError):
    """`INVALID_REQUEST`: the message says which field is wrong."""


class NotFound(ApiError):
    """`NOT_FOUND`: the account has no such task."""


class RateLimited(ApiError):
    """`RATE_LIMITED`, after the time for retries is over."""


class InternalError(ApiError):
    """`INTERNAL_ERROR`, after all retries. Nothing stays charged."""


class InsufficientCredits(ApiError):
    """`INSUFFICIENT_CREDITS`, with the credits `required` and `available`."""

    required: int | None = None
    available: int | None = None


_CLASSES: dict[str, type[ApiError]] = {
    "UNAUTHORIZED": Unauthorized,
    "INVALID_REQUEST": InvalidRequest,
    "INSUFFICIENT_CREDITS": InsufficientCredits,
    "NOT_FOUND": NotFound,
    "RATE_LIMITED": RateLimited,
    "INTERNAL_ERROR": InternalError,
}


def api_error(status: int, body: Any, retry_after: float | None) -> ApiError | None:
    """The error in an envelope; `None` if the body is not an envelope of the API."""
    detail = body.get("error") if isinstance(body, dict) else None
    if not isinstance(detail, dict) or not isinstance(detail.get("code"), str):
        return None
    code = detail["code"]
    error = _CLASSES.get(code, ApiError)(
        status, code, str(detail.get("message", "")), detail.get("request_id"), retry_after
    )
    if isinstance(error, InsufficientCredits):
        numbers = {**body, **detail}
        error.required, error.available = numbers.get("required"), numbers.get("available")
    return error
