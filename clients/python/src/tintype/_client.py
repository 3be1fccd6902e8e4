"""The clients: they send the requests and wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ._core import LARGEST_ANSWER, STUCK_AFTER, Answer, Call, Core, Send, Sleep, T, Task
from ._errors import NoAnswer


@dataclass(frozen=True)
class Generated:
    """A completed task and its pictures as PNG, in order."""

    task: Task
    pictures: tuple[bytes, ...]

    def save(self, folder: str | Path = ".") -> list[Path]:
        """Writes the pictures as `TASK_ID-1.png` and so on; never over an existing file."""
        paths = [Path(folder) / f"{self.task.task_id}-{i}.png" for i in range(1, len(self.pictures) + 1)]
        for path, picture in zip(paths, self.pictures):
            with path.open("xb") as file:
                file.write(picture)
        return paths


class _Base:
    def __init__(self, base_url: str, key: str, *, timeout: float = 60.0) -> None:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("the key is empty or holds characters that no key has")
        self._core = Core(base_url)
        self._authorization = f"Bearer {key}"
        self._timeout = timeout
        # Plain HTTP is meant for this machine, and a proxy would read the key.
        self._trust_env = base_url.startswith("https:")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._core.base_url!r})"

    def _options(self, send: Send) -> dict[str, Any]:
        headers = {"user-agent": "tintype-python/0.1.0"}
        if send.key:
            headers["authorization"] = self._authorization
        if send.body is not None:
            headers["content-type"] = "application/json"
        return {"headers": headers, "content": send.body, "follow_redirects": not send.key}


class _Body:
    """A body as it arrives, with limits on its size and time."""

    def __init__(self) -> None:
        self._end = time.monotonic() + STUCK_AFTER
        self.bytes = bytearray()

    def add(self, chunk: bytes) -> None:
        self.bytes += chunk
        if len(self.bytes) > LARGEST_ANSWER or time.monotonic() > self._end:
            raise httpx.ReadError("the answer is too large or too slow")


class Client(_Base):
    """Calls one server with one key. Use one for each thread."""

    def __init__(self, base_url: str, key: str, *, timeout: float = 60.0) -> None:
        super().__init__(base_url, key, timeout=timeout)
        self._http = httpx.Client(timeout=timeout, trust_env=self._trust_env)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _answer(self, send: Send) -> Answer:
        body, options = _Body(), self._options(send)
        with self._http.stream(send.method, send.url, **options) as response:
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
                except httpx.HTTPError as error:
                    step = call.throw(NoAnswer(f"no complete answer: {type(error).__name__}"))
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
        """Polls a task until it is completed. Raises `TaskFailed` or `NotFinished`."""
        return self._run(self._core.wait(task_id, limit))

    def download(self, task: Task) -> tuple[bytes, ...]:
        """The pictures of a completed task. Does not send the key."""
        return tuple(self._run(self._core.download(url)) for url in task.images)

    def generate(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (), limit: float = STUCK_AFTER,
    ) -> Generated:
        """Submits, waits and downloads."""
        task = self.submit(prompt, aspect_ratio=aspect_ratio, n=n, reference_images=reference_images)
        task = self.wait(task.task_id, limit=limit)
        return Generated(task, self.download(task))

    def list(self, *, page_size: int = 20) -> Iterator[Task]:
        """The tasks of the account, newest first, page by page."""
        tasks, cursor = self._run(self._core.page(page_size, None))
        yield from tasks
        while cursor:
            tasks, cursor = self._run(self._core.page(page_size, cursor))
            yield from tasks

    def credits(self) -> int:
        """The balance."""
        return int(self._run(self._core.account())["credits"])


class AsyncClient(_Base):
    """Calls one server with one key."""

    def __init__(self, base_url: str, key: str, *, timeout: float = 60.0) -> None:
        super().__init__(base_url, key, timeout=timeout)
        self._http = httpx.AsyncClient(timeout=timeout, trust_env=self._trust_env)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _answer(self, send: Send) -> Answer:
        body, options = _Body(), self._options(send)
        async with self._http.stream(send.method, send.url, **options) as response:
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
                except httpx.HTTPError as error:
                    step = call.throw(NoAnswer(f"no complete answer: {type(error).__name__}"))
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
        """Polls a task until it is completed. Raises `TaskFailed` or `NotFinished`."""
        return await self._run(self._core.wait(task_id, limit))

    async def download(self, task: Task) -> tuple[bytes, ...]:
        """The pictures of a completed task. Does not send the key."""
        return tuple([await self._run(self._core.download(url)) for url in task.images])

    async def generate(
        self, prompt: str, *, aspect_ratio: str | None = None, n: int | None = None,
        reference_images: Sequence[str] = (), limit: float = STUCK_AFTER,
    ) -> Generated:
        """Submits, waits and downloads. Cancelling it leaves the task going on."""
        task = await self.submit(prompt, aspect_ratio=aspect_ratio, n=n, reference_images=reference_images)
        task = await self.wait(task.task_id, limit=limit)
        return Generated(task, await self.download(task))

    async def list(self, *, page_size: int = 20) -> AsyncIterator[Task]:
        """The tasks of the account, newest first, page by page."""
        cursor: str | None = None
        more = True
        while more:
            tasks, cursor = await self._run(self._core.page(page_size, cursor))
            for task in tasks:
                yield task
            more = cursor is not None

    async def credits(self) -> int:
        """The balance."""
        return int((await self._run(self._core.account()))["credits"])
