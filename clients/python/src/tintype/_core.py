"""The calls as generators, which yield what is to be done and get the result; the clients do it, sync or async."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar, Union
from urllib.parse import quote, urlencode, urlsplit

import httpx

from ._errors import ApiError, NoAnswer, NotFinished, NotFound, SubmitUnanswered, TaskFailed, TintypeError, api_error

STUCK_AFTER = 600.0
_FIRST_POLL, _NEXT_POLL, _SHORTEST_WAIT = 10.0, 5.0, 0.05
_FAILURE_WAITS = (2.0, 4.0, 8.0)
_LONGEST_THROTTLE = 60.0
# A submit that has not started 5 seconds after it arrived never does, so the list is the truth after that.
_SETTLED_AFTER = 7.0
_LARGEST_PAGE = 100
_MOST_ADVISED = 1000
_PNG = b"\x89PNG\r\n\x1a\n"
# The largest answer that a client reads, in bytes.
LARGEST_ANSWER = 64 * 1024 * 1024


@dataclass(frozen=True)
class Task:
    """A task, as the API returns it. `images` are the URLs, in order."""

    task_id: str
    status: str
    type: str
    images: tuple[str, ...]
    error: str | None
    created_at: datetime


@dataclass(frozen=True)
class Send:
    """A request. Those with `key` go to the API and follow no redirect."""

    method: str
    url: str
    body: bytes | None = None
    key: bool = True


@dataclass(frozen=True)
class Answer:
    """An answer with all of its body."""

    status: int
    headers: httpx.Headers
    body: bytes


@dataclass(frozen=True)
class Sleep:
    """A wait in seconds."""

    seconds: float


Step = Union[Send, Sleep]
T = TypeVar("T")
Call = Generator[Step, Any, T]


def seconds(headers: httpx.Headers, name: str) -> float | None:
    """The value of a header in seconds; `None` for a date, or for what is no number."""
    try:
        value = float(headers.get(name, ""))
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _task(data: Any) -> Task:
    try:
        images = tuple(str(image["url"]) for image in data.get("images") or ())
        return Task(data["task_id"], data["status"], data["type"], images, data.get("error"), _time(data["created_at"]))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise NoAnswer("the answer is not one of the Tintype API") from None


def _tasks(page: Any) -> list[Task]:
    items = page.get("items")
    if not isinstance(items, list):
        raise NoAnswer("the answer is not one of the Tintype API")
    return [_task(item) for item in items]


def _until_poll(headers: httpx.Headers, otherwise: float) -> float:
    """The wait that the server advises, but never longer than the interface's own."""
    hint = seconds(headers, "x-poll-after")
    return otherwise if hint is None else min(max(hint, _SHORTEST_WAIT), otherwise)


@dataclass
class Backoff:
    """The errors since the last success."""

    failures: int = 0
    throttled: int = 0
    not_found: int = 0

    def wait(self, error: TintypeError) -> float:
        """The wait before a retry. Raises the error if a retry cannot help."""
        if isinstance(error, ApiError):
            if error.status == 429:
                self.throttled += 1
                doubled = min(2.0 ** (self.throttled - 1), _LONGEST_THROTTLE)
                return max(doubled if error.retry_after is None else error.retry_after, _SHORTEST_WAIT)
            if isinstance(error, NotFound) and self.not_found:
                self.not_found -= 1
                return 1.0
            if error.status < 500:
                raise error
        elif not isinstance(error, NoAnswer):
            raise error
        if self.failures == len(_FAILURE_WAITS):
            raise error
        self.failures += 1
        asked = error.retry_after if isinstance(error, ApiError) else None
        return _FAILURE_WAITS[self.failures - 1] if asked is None else max(asked, _SHORTEST_WAIT)


@dataclass
class Core:
    """The calls to one server."""

    base_url: str
    in_flight: int = 0
    known: deque[str] = field(default_factory=lambda: deque(maxlen=1000))
    # The waits before the first polls that the server advised, of tasks that nobody has waited for.
    advised: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ValueError("the URL of the server must look like https://images.example.com")
        if url.scheme == "http" and url.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError("over plain HTTP anybody on the way can read the key; use https")
        self.base_url = self.base_url.rstrip("/") + "/api/v1"

    def _once(self, send: Send) -> Call[tuple[Any, httpx.Headers]]:
        answer: Answer = yield send
        try:
            body = json.loads(answer.body)
        except ValueError:
            body = None
        if answer.status != 200:
            error = api_error(answer.status, body, seconds(answer.headers, "retry-after"))
            raise error or NoAnswer(f"HTTP {answer.status}, and not from the Tintype API")
        if not isinstance(body, dict) or not isinstance(body.get("data"), dict):
            raise NoAnswer("the answer is not one of the Tintype API")
        return body["data"], answer.headers

    def _read(self, path: str, limit: float = STUCK_AFTER) -> Call[tuple[Any, httpx.Headers]]:
        end, backoff = time.monotonic() + limit, Backoff()
        while True:
            try:
                return (yield from self._once(Send("GET", self.base_url + path)))
            except TintypeError as error:
                wait = backoff.wait(error)
                if time.monotonic() + wait > end:
                    raise
            yield Sleep(wait)

    def get(self, task_id: str) -> Call[Task]:
        data, _ = yield from self._read("/images/task/" + quote(task_id, safe=""))
        return _task(data)

    def page(self, limit: int, cursor: str | None) -> Call[tuple[list[Task], str | None]]:
        query = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        data, _ = yield from self._read("/images/task?" + urlencode(query))
        return _tasks(data), data.get("next_cursor")

    def account(self) -> Call[dict[str, Any]]:
        data, _ = yield from self._read("/account")
        return dict(data)

    def submit(self, prompt: str, aspect_ratio: str | None, n: int | None, references: Sequence[str]) -> Call[Task]:
        fields: dict[str, Any] = {"prompt": prompt, "aspect_ratio": aspect_ratio, "n": n}
        fields = {name: value for name, value in fields.items() if value is not None}
        if references:
            fields["reference_images"] = list(references)
        send = Send("POST", self.base_url + "/images/generate", json.dumps(fields).encode())
        end, backoff = time.monotonic() + STUCK_AFTER, Backoff()
        self.in_flight += 1
        try:
            while True:
                sent = time.monotonic()
                try:
                    data, headers = yield from self._once(send)
                    task = _task(data)
                    self.advised[task.task_id] = _until_poll(headers, _FIRST_POLL)
                    while len(self.advised) > _MOST_ADVISED:
                        del self.advised[next(iter(self.advised))]
                except NoAnswer as error:
                    task = yield from self._settle(sent, "image-to-image" if references else "text-to-image", error)
                except ApiError as error:
                    # The API itself refused, so that no task exists and nothing stays charged.
                    wait = backoff.wait(error)
                    if time.monotonic() + wait > end:
                        raise
                    yield Sleep(wait)
                    continue
                self.known.append(task.task_id)
                return task
        finally:
            self.in_flight -= 1

    def _settle(self, sent: float, kind: str, lost: NoAnswer) -> Call[Task]:
        """The task that a lost submit made. A list has no prompts; it tells tasks by their kind and time."""
        yield Sleep(_SETTLED_AFTER)
        try:
            data, headers = yield from self._read(f"/images/task?limit={_LARGEST_PAGE}")
            tasks = _tasks(data)
            # Both times by the server's clock; its Date has no fraction.
            now = parsedate_to_datetime(headers["date"]).astimezone(timezone.utc)
        except (TintypeError, KeyError, TypeError, ValueError) as error:
            text = "the submit got no answer and the tasks cannot be listed; list them before you submit again"
            raise SubmitUnanswered(text, None) from error
        since = now - timedelta(seconds=time.monotonic() - sent + 1)
        found = [task for task in tasks if task.created_at >= since and task.type == kind]
        found = [task for task in found if task.task_id not in self.known]
        if len(found) == 1 and self.in_flight == 1:
            return found[0]
        ids = [task.task_id for task in found]
        if not ids:
            text = "the submit got no answer and made no task; you can submit again"
        else:
            text = f"the submit got no answer and may have made one of {', '.join(ids)}; get these before you repeat it"
        raise SubmitUnanswered(text, ids) from lost

    def wait(self, task_id: str, limit: float) -> Call[Task]:
        end, backoff = time.monotonic() + limit, Backoff(not_found=1)
        wait = self.advised.pop(task_id, _FIRST_POLL)
        while True:
            if time.monotonic() + wait > end:
                raise NotFinished(task_id)
            yield Sleep(wait)
            try:
                url = f"{self.base_url}/images/task/{quote(task_id, safe='')}"
                data, headers = yield from self._once(Send("GET", url))
            except TintypeError as error:
                wait = backoff.wait(error)
                continue
            task, backoff = _task(data), Backoff()
            if task.status == "failed":
                raise TaskFailed(task_id, task.error or "the server gave no reason")
            if task.status == "completed":
                return task
            wait = _until_poll(headers, _NEXT_POLL)

    def download(self, url: str) -> Call[bytes]:
        backoff = Backoff()
        while True:
            try:
                answer: Answer = yield Send("GET", url, key=False)
                if answer.status != 200:
                    raise NoAnswer(f"the file host answered HTTP {answer.status}")
                if not answer.body.startswith(_PNG):
                    raise NoAnswer("the file is not a PNG")
                return answer.body
            except NoAnswer as error:
                wait = backoff.wait(error)
            yield Sleep(wait)
