"""The calls as generators, which yield what is to be done and get the result; the clients do it, sync or async."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta, timezone
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, TypeVar, Union
from urllib.parse import quote, urlencode, urlsplit

import httpx

from ._errors import (
    ApiError, NoAnswer, NoConnection, NoImage, NotFinished, NotFound, RateLimited, SubmitUnanswered, TaskFailed,
    TintypeError, WrongServer, api_error,
)
from ._task import Task, read_task

STUCK_AFTER = 600.0
_FIRST_POLL, _NEXT_POLL, _SHORTEST_WAIT = 10.0, 5.0, 0.05
_FAILURE_WAITS = (2.0, 4.0, 8.0)
_LONGEST_THROTTLE = 60.0
# A submit that has not started 5 seconds after it arrived never does, so the list is the truth after that.
_SETTLED_AFTER = 7.0
# The clocks of the server's machines, and the second that its Date is rounded to, differ by less.
_CLOCK_MARGIN = 3.0
_LARGEST_PAGE = 100
_MOST_REMEMBERED = 1000
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class Send:
    """A request. Those with `key` go to the API and follow no redirect."""

    method: str
    url: str
    # Seconds for the whole answer.
    limit: float
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


def _until_poll(headers: httpx.Headers, otherwise: float) -> float:
    """The wait that the server advises, but never longer than the interface's own."""
    hint = seconds(headers, "x-poll-after")
    return otherwise if hint is None else min(max(hint, _SHORTEST_WAIT), otherwise)


def _data(answer: Answer) -> dict[str, Any]:
    """The data of an answer, or its error."""
    try:
        body = json.loads(answer.body)
    except ValueError:
        body = None
    retry_after = seconds(answer.headers, "retry-after")
    if answer.status == 200:
        if isinstance(body, dict) and isinstance(body.get("data"), dict):
            data: dict[str, Any] = body["data"]
            return data
    elif error := api_error(answer.status, body, retry_after):
        raise error
    elif 300 <= answer.status < 400:
        raise WrongServer(
            f"this address redirects to {answer.headers.get('location')}, and is not that of the API: "
            "give the address of the server, without a path"
        )
    elif answer.status == 429:
        raise RateLimited(429, "RATE_LIMITED", "a gateway of the server refuses so many requests", None, retry_after)
    elif answer.status < 500:
        raise WrongServer(f"HTTP {answer.status}, and not from the Tintype API: check the address of the server")
    raise NoAnswer(f"HTTP {answer.status}, and not from the Tintype API")


def _page(data: dict[str, Any]) -> tuple[list[Task], str | None]:
    items, cursor = data.get("items"), data.get("next_cursor")
    if not isinstance(items, list):
        raise NoAnswer("the answer is not one of the Tintype API")
    return [read_task(item) for item in items], str(cursor) if cursor else None


@dataclass
class Backoff:
    """The errors since the last success."""

    failures: int = 0
    throttled: int = 0
    not_found: int = 0

    def wait(self, error: TintypeError) -> float:
        """The wait before a retry. Raises the error if a retry cannot help."""
        asked = error.retry_after if isinstance(error, ApiError) else None
        if isinstance(error, ApiError):
            if error.status == 429:
                self.throttled += 1
                doubled = min(2.0 ** (self.throttled - 1), _LONGEST_THROTTLE)
                return max(doubled if asked is None else asked, _SHORTEST_WAIT)
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
        return _FAILURE_WAITS[self.failures - 1] if asked is None else max(asked, _SHORTEST_WAIT)


@dataclass
class Submits:
    """The submits of a client, whose threads may share it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    in_flight: int = 0
    # Ids of tasks that are known to be of other submits than a lost one.
    known: deque[str] = field(default_factory=lambda: deque(maxlen=_MOST_REMEMBERED))
    # The times of the first polls that the server advised, of tasks that nobody has waited for.
    first_polls: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        with self.lock:
            self.in_flight += 1

    def end(self) -> None:
        with self.lock:
            self.in_flight -= 1

    def made(self, task_id: str, first_poll: float) -> None:
        with self.lock:
            self.known.append(task_id)
            self.first_polls[task_id] = first_poll
            while len(self.first_polls) > _MOST_REMEMBERED:
                del self.first_polls[next(iter(self.first_polls))]

    def first_poll(self, task_id: str) -> float:
        with self.lock:
            return self.first_polls.pop(task_id, 0.0)

    def unknown(self, tasks: list[Task]) -> tuple[list[Task], bool]:
        """The tasks that no other submit is known to have made, and whether no other submit is under way."""
        with self.lock:
            return [task for task in tasks if task.task_id not in self.known], self.in_flight == 1


class Core:
    """The calls to one server. `timeout` is the time for an answer of the API in seconds."""

    def __init__(self, base_url: str, timeout: float, plain_http: bool) -> None:
        url = urlsplit(base_url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ValueError("the URL of the server must look like https://images.example.com")
        self.is_secure = url.scheme == "https"
        if not self.is_secure and not plain_http and not _is_this_machine(url.hostname):
            raise ValueError("over plain HTTP anyone on the way can read the key: use https, or plain_http=True")
        # `tintype serve` prints the address of the API.
        self.base_url = base_url.rstrip("/").removesuffix("/api/v1")
        self._api = self.base_url + "/api/v1"
        self._timeout = timeout
        self._submits = Submits()

    def _read(self, path: str) -> Call[tuple[dict[str, Any], httpx.Headers]]:
        end, backoff = time.monotonic() + STUCK_AFTER, Backoff()
        while True:
            try:
                answer: Answer = yield Send("GET", self._api + path, self._timeout)
                return _data(answer), answer.headers
            except TintypeError as error:
                wait = backoff.wait(error)
                if time.monotonic() + wait > end:
                    raise
            yield Sleep(wait)

    def get(self, task_id: str) -> Call[Task]:
        data, _ = yield from self._read(_task_path(task_id))
        return read_task(data)

    def page(self, limit: int, cursor: str | None) -> Call[tuple[list[Task], str | None]]:
        query = {"limit": str(limit)} | ({"cursor": cursor} if cursor else {})
        data, _ = yield from self._read("/images/task?" + urlencode(query))
        tasks, following = _page(data)
        # Such as from a cache that ignores the query. The list would have no end.
        if following and following == cursor:
            raise NoAnswer("the server gives the same page of the list twice")
        return tasks, following

    def credits(self) -> Call[int]:
        data, _ = yield from self._read("/account")
        credits = data.get("credits")
        if not isinstance(credits, int):
            raise NoAnswer("the answer is not one of the Tintype API")
        return credits

    def submit(self, prompt: str, aspect_ratio: str | None, n: int | None, references: Sequence[str]) -> Call[Task]:
        if isinstance(references, str):
            raise TypeError("reference_images must be a list of URLs")
        fields: dict[str, Any] = {"prompt": prompt, "aspect_ratio": aspect_ratio, "n": n}
        fields = {name: value for name, value in fields.items() if value is not None}
        if references:
            fields["reference_images"] = list(references)
        send = Send("POST", self._api + "/images/generate", self._timeout, json.dumps(fields).encode())
        end, backoff = time.monotonic() + STUCK_AFTER, Backoff()
        self._submits.begin()
        try:
            while True:
                sent = time.monotonic()
                try:
                    answer: Answer = yield send
                    task = read_task(_data(answer))
                    wait = _until_poll(answer.headers, _FIRST_POLL)
                except NoConnection:
                    raise
                except NoAnswer as error:
                    task = yield from self._settle(sent, "image-to-image" if references else "text-to-image", error)
                    wait = 0.0
                except ApiError as error:
                    # The API itself refused, so that no task exists and nothing stays charged.
                    wait = backoff.wait(error)
                    if time.monotonic() + wait > end:
                        raise
                    yield Sleep(wait)
                    continue
                self._submits.made(task.task_id, time.monotonic() + wait)
                return task
        finally:
            self._submits.end()

    def _settle(self, sent: float, kind: str, lost: NoAnswer) -> Call[Task]:
        """The task that a lost submit made. A list has no prompts; it tells tasks by their kind and time."""
        yield Sleep(_SETTLED_AFTER)
        try:
            data, headers = yield from self._read(f"/images/task?limit={_LARGEST_PAGE}")
            tasks, _ = _page(data)
            # Both times by the server's clock.
            now = parsedate_to_datetime(headers["date"]).astimezone(timezone.utc)
        except (TintypeError, KeyError, TypeError, ValueError) as error:
            text = "the submit got no answer and the tasks cannot be listed; list them before you submit again"
            raise SubmitUnanswered(text, None) from error
        since = now - timedelta(seconds=time.monotonic() - sent + _CLOCK_MARGIN)
        found = [task for task in tasks if task.created_at >= since and task.type == kind]
        found, is_alone = self._submits.unknown(found)
        if len(found) == 1 and is_alone:
            return found[0]
        ids = [task.task_id for task in found]
        if not ids:
            text = "the submit got no answer, and the list has no task of it"
        else:
            text = f"the submit got no answer and may have made one of {', '.join(ids)}; get these before you repeat it"
        raise SubmitUnanswered(text, ids) from lost

    def wait(self, task_id: str, limit: float) -> Call[Task]:
        begin, backoff = time.monotonic(), Backoff(not_found=1)
        end = begin + limit
        # A task of another client was submitted some time ago.
        wait = max(self._submits.first_poll(task_id) - begin, 0.0)
        while True:
            if wait:
                if time.monotonic() + wait > end:
                    raise NotFinished(task_id)
                yield Sleep(wait)
            limit_of_poll = min(self._timeout, max(end - time.monotonic(), 1.0))
            try:
                answer: Answer = yield Send("GET", self._api + _task_path(task_id), limit_of_poll)
                task = read_task(_data(answer))
            except TintypeError as error:
                wait = backoff.wait(error)
                continue
            backoff = Backoff()
            if task.status == "failed":
                raise TaskFailed(task_id, task.error or "the server gave no reason")
            if task.status == "completed":
                return task
            wait = _until_poll(answer.headers, _NEXT_POLL)

    def download(self, url: str) -> Call[bytes]:
        end, backoff = time.monotonic() + STUCK_AFTER, Backoff()
        while True:
            try:
                answer: Answer = yield Send("GET", url, STUCK_AFTER, key=False)
                return _image(answer)
            except TintypeError as error:
                wait = backoff.wait(error)
                if time.monotonic() + wait > end:
                    raise
            yield Sleep(wait)


def _image(answer: Answer) -> bytes:
    if answer.status == 200:
        if not answer.body.startswith(_PNG):
            raise NoImage("the file is not a PNG")
        return answer.body
    text = f"the file host answered HTTP {answer.status}"
    if answer.status == 429:
        raise RateLimited(429, "RATE_LIMITED", text, None, seconds(answer.headers, "retry-after"))
    if answer.status < 500:
        raise NoImage(f"{text}: the URL may have expired, or the file may be gone; get the task again")
    raise NoAnswer(text)


def _task_path(task_id: str) -> str:
    return "/images/task/" + quote(task_id, safe="")


def _is_this_machine(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
