"""A client of the Tintype image service."""

from ._client import AsyncClient, Client
from ._errors import (
    ApiError, InsufficientCredits, InternalError, InvalidRequest, NoAnswer, NoConnection, NoImage, NotFinished,
    NotFound, RateLimited, SubmitUnanswered, TaskFailed, TintypeError, Unauthorized, WrongServer,
)
from ._task import Generated, Status, Task
from ._version import __version__ as __version__

__all__ = [
    "ApiError", "AsyncClient", "Client", "Generated", "InsufficientCredits", "InternalError", "InvalidRequest",
    "NoAnswer", "NoConnection", "NoImage", "NotFinished", "NotFound", "RateLimited", "Status", "SubmitUnanswered",
    "Task", "TaskFailed", "TintypeError", "Unauthorized", "WrongServer",
]
