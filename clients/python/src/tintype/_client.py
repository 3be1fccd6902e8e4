"""The clients: they send the requests and wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx

from ._core import STUCK_AFTER, Answer, Call, Core, Send, Sleep, T
from ._errors import NoAnswer, NoConnection, TintypeError
from ._task import Generated, Task
from ._version import __version__

# The largest answer that a client reads, in bytes.
_LARGEST_ANSWER = 64 * 1024 * 1024
_CONNECT_SECONDS = 10.0
# After these nothing was sent.
_NO_CONNECTION = (
    httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError, httpx.UnsupportedProtocol,
    httpx.InvalidURL,
)


class _Base:
    def __init__(self, base_url: str, api_key: str, timeout: float, plain_http: bool) -> None:
        if not api_key or not api_key.isascii() or not api_key.isprintable() or " " in api_key:
            raise ValueError("the key is empty or holds characters that no key has")
        self._core = Core(base_url, timeout, plain_http)
        self._authorization = f"Bearer {api_key}"
        self._timeout = timeout
        # Over plain HTTP a proxy would read the key.
        self._trust_env = self._core.is_secure

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.base_url!r})"

    def _options(self, send: Send) -> dict[str, Any]:
        headers = {"user-agent": f"tintype-python/{__version__}"}
        if send.key:
            headers["authorization"] = self._authorization
        if send.body is not None:
            headers["content-type"] = "application/json"
        silence = min(self._timeout, send.limit)
        timeout = httpx.Timeout(silence, connect=min(_CONNECT_SECONDS, silence))
        return {"headers": headers, "content": send.body, "follow_redirects": not send.key, "timeout": timeout}


class _Body:
    """A body as it arrives, with limits on its size and time."""

    def __init__(self, limit: float) -> None:
        self._end = time.monotonic() + limit
        self.bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self.bytes += chunk
        if len(self.bytes) > _LARGEST_ANSWER or time.monotonic() > self._end:
            raise httpx.ReadError("the answer is too large or too slow")


def _fault(error: Exception) -> NoAnswer:
    cause = str(error) or type(error).__name__
    if isinstance(error, _NO_CONNECTION):
        return NoConnection(f"no connection, so nothing was sent: {cause}")
    return NoAnswer(f"no complete answer: {cause}")


class Client(_Base):
    """Calls one server with one key. Threads may share it.

    `timeout` is the time for an answer of the API in seconds. `plain_http` allows to send the key over plain HTTP to
    other machines than this one. `transport` replaces that of httpx.
    """

    def __init__(
        self, base_url: str, api_key: str, *, timeout: float = 60.0, plain_http: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, plain_http)
        self._http = httpx.Client(trust_env=self._trust_env, transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _answer(self, send: Send) -> Answer:
        body = _Body(send.limit)
        with self._http.stream(send.method, send.url, **self._options(send)) as response:
            for chunk in response.iter_bytes():
                body.add(chunk)
        return Answer(response.status_code, response.headers, bytes(body.bytes))

    def _run(self, call: Call[T]) -> T:
        try:
            step = next(call)
            while True:
                if isinstance(step, Sleep):
                    time.sleep(step.seconds)
                    step = call.send(None)
                    continue
                try:
                    answer = self._answer(step)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    step = call.throw(_fault(error))
                else:
                    step = call.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            call.close()

    def submit(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (),
    ) -> Task:
        """Creates a task. Raises `SubmitUnanswered` if it may exist and cannot be told."""
        return self._run(self._core.submit(prompt, aspect_ratio, n, reference_images))

    def get(self, task_id: str) -> Task:
        """A task as it is now."""
        return self._run(self._core.get(task_id))

    def wait(self, task_id: str, *, limit: float = STUCK_AFTER) -> Task:
        """Polls a task until it is completed, for `limit` seconds. Raises `TaskFailed` or `NotFinished`."""
        return self._run(self._core.wait(task_id, limit))

    def download(self, task: Task) -> tuple[bytes, ...]:
        """The images of a completed task. Does not send the key."""
        return tuple(self._run(self._core.download(url)) for url in task.images)

    def generate(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (), limit: float = STUCK_AFTER,
    ) -> Generated:
        """Submits, waits and downloads. Every error after the submit has the `task_id`."""
        task = self.submit(prompt, aspect_ratio=aspect_ratio, n=n, reference_images=reference_images)
        try:
            task = self.wait(task.task_id, limit=limit)
            return Generated(task, self.download(task))
        except TintypeError as error:
            error.task_id = task.task_id
            raise

    def list(self, *, page_size: int = 20) -> Iterator[Task]:
        """The tasks of the account, newest first, page by page."""
        tasks, cursor = self._run(self._core.page(page_size, None))
        yield from tasks
        while cursor:
            tasks, cursor = self._run(self._core.page(page_size, cursor))
            yield from tasks

    def credits(self) -> int:
        """The balance."""
        return self._run(self._core.credits())


class AsyncClient(_Base):
    """The same calls as coroutines. Cancelling one leaves its task going on."""

    def __init__(
        self, base_url: str, api_key: str, *, timeout: float = 60.0, plain_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(base_url, api_key, timeout, plain_http)
        self._http = httpx.AsyncClient(trust_env=self._trust_env, transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _answer(self, send: Send) -> Answer:
        body = _Body(send.limit)
        async with self._http.stream(send.method, send.url, **self._options(send)) as response:
            async for chunk in response.aiter_bytes():
                body.add(chunk)
        return Answer(response.status_code, response.headers, bytes(body.bytes))

    async def _run(self, call: Call[T]) -> T:
        try:
            step = next(call)
            while True:
                if isinstance(step, Sleep):
                    await asyncio.sleep(step.seconds)
                    step = call.send(None)
                    continue
                try:
                    answer = await self._answer(step)
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    step = call.throw(_fault(error))
                else:
                    step = call.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            call.close()

    async def submit(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (),
    ) -> Task:
        """Creates a task. Raises `SubmitUnanswered` if it may exist and cannot be told."""
        return await self._run(self._core.submit(prompt, aspect_ratio, n, reference_images))

    async def get(self, task_id: str) -> Task:
        """A task as it is now."""
        return await self._run(self._core.get(task_id))

    async def wait(self, task_id: str, *, limit: float = STUCK_AFTER) -> Task:
        """Polls a task until it is completed, for `limit` seconds. Raises `TaskFailed` or `NotFinished`."""
        return await self._run(self._core.wait(task_id, limit))

    async def download(self, task: Task) -> tuple[bytes, ...]:
        """The images of a completed task. Does not send the key."""
        return tuple([await self._run(self._core.download(url)) for url in task.images])

    async def generate(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (), limit: float = STUCK_AFTER,
    ) -> Generated:
        """Submits, waits and downloads. Every error after the submit has the `task_id`."""
        task = await self.submit(prompt, aspect_ratio=aspect_ratio, n=n, reference_images=reference_images)
        try:
            task = await self.wait(task.task_id, limit=limit)
            return Generated(task, await self.download(task))
        except TintypeError as error:
            error.task_id = task.task_id
            raise

    async def list(self, *, page_size: int = 20) -> AsyncIterator[Task]:
        """The tasks of the account, newest first, page by page."""
        tasks, cursor = await self._run(self._core.page(page_size, None))
        for task in tasks:
            yield task
        while cursor:
            tasks, cursor = await self._run(self._core.page(page_size, cursor))
            for task in tasks:
                yield task

    async def credits(self) -> int:
        """The balance."""
        return await self._run(self._core.credits())
