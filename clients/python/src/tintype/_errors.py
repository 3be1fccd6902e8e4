"""The errors of the client, after the codes of the API."""

from __future__ import annotations

from typing import Any


class TintypeError(Exception):
    """Any error of this package. `task_id` is the task that it is about, which exists and may go on."""

    task_id: str | None = None


class NoAnswer(TintypeError):
    """No complete answer of the API or of the file host. Never raised by a submit that may have been accepted."""


class NoConnection(NoAnswer):
    """No connection was made, so nothing was sent."""


class WrongServer(TintypeError):
    """The answer is a redirect, or a refusal that is not one of the Tintype API. Nothing was accepted."""


class NoImage(TintypeError):
    """A file of a completed task is gone or is no PNG, or its URL has expired."""


class NotFinished(TintypeError):
    """The task is not terminal after the time limit. It goes on; `wait` for it later by its `task_id`."""

    def __init__(self, task_id: str) -> None:
        super().__init__(task_id)
        self.task_id = task_id

    def __str__(self) -> str:
        return f"{self.task_id} is not finished in time; wait for it later, or contact support with this id"


class TaskFailed(TintypeError):
    """The task failed. Its credits are refunded."""

    def __init__(self, task_id: str, reason: str) -> None:
        super().__init__(task_id, reason)
        self.task_id = task_id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.task_id} failed: {self.reason}"


class SubmitUnanswered(TintypeError):
    """A submit got no answer, and the list of tasks does not tell for certain which task it made.

    `candidates` are the ids of the tasks that it may have made; `None` if the list could not be read.
    """

    def __init__(self, message: str, candidates: list[str] | None) -> None:
        super().__init__(message, candidates)
        self.message = message
        self.candidates = candidates

    def __str__(self) -> str:
        return self.message


class ApiError(TintypeError):
    """The API answered with an error. `code` is stable; `request_id` is for support; `retry_after` is in seconds."""

    def __init__(
        self, status: int, code: str, message: str, request_id: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(status, code, message, request_id, retry_after)
        self.status = status
        self.code = code
        self.message = message
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.code}, request {self.request_id})"


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
