"""A client of the Tintype image service."""

from ._client import AsyncClient, Client, Generated
from ._core import Task
from ._errors import (
    ApiError, InsufficientCredits, InternalError, InvalidRequest, NoAnswer, NotFinished, NotFound, RateLimited,
    SubmitUnanswered, TaskFailed, TintypeError, Unauthorized,
)

__all__ = [
    "ApiError", "AsyncClient", "Client", "Generated", "InsufficientCredits", "InternalError", "InvalidRequest",
    "NoAnswer", "NotFinished", "NotFound", "RateLimited", "SubmitUnanswered", "Task", "TaskFailed", "TintypeError",
    "Unauthorized",
]
