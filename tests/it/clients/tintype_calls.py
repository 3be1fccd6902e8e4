"""Calls of Tintype's Python client, as a program of a user makes them, and with faults between it and the real server.

Arguments: URL, folder for images, and keys of accounts: one without credits, and then ones with 100.
"""

import asyncio
import pickle
import struct
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import httpx
import tintype

url, folder, poor, *keys = sys.argv[1:]

# A fault answers a request, and may pass it on to the server.
PassOn = Callable[[], httpx.Response]
Fault = Callable[[PassOn], httpx.Response]


class Server(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """The server. Each fault is for the next request to a path that contains its text."""

    def __init__(self, *faults: tuple[str, Fault]) -> None:
        self.inner, self.faults, self.seen = httpx.HTTPTransport(), list(faults), list[tuple[str, str, bool]]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.seen.append((request.method, request.url.path, "authorization" in request.headers))
        del request.headers["accept-encoding"]

        def pass_on() -> httpx.Response:
            answer = self.inner.handle_request(request)
            if "x-poll-after" in answer.headers:
                answer.headers["x-poll-after"] = POLL_AFTER
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.read())

        if self.faults and self.faults[0][0] in request.url.path:
            return self.faults.pop(0)[1](pass_on)
        return pass_on()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)

    def submits(self) -> int:
        return sum(method == "POST" for method, _, _ in self.seen)


def lost_answer(pass_on: PassOn) -> httpx.Response:
    pass_on()
    raise httpx.ReadError("lost")


def lost_request(_: PassOn) -> httpx.Response:
    raise httpx.ReadError("lost")


def refused(status: int, code: str, **headers: str) -> Fault:
    body = {"error": {"code": code, "message": "no", "request_id": "r"}}
    return lambda _: httpx.Response(status, json=body, headers={name.replace("_", "-"): headers[name] for name in headers})


def page(status: int, **headers: str) -> Fault:
    """The answer of something that is not the API."""
    return lambda _: httpx.Response(status, html="<html>", headers=headers)


def changed(change: Callable[[Any, httpx.Headers], None]) -> Fault:
    """The server's answer with a change."""

    def change_it(pass_on: PassOn) -> httpx.Response:
        answer = pass_on()
        body = answer.json()
        change(body["data"], answer.headers)
        del answer.headers["content-length"]
        return httpx.Response(answer.status_code, headers=answer.headers, json=body)

    return change_it


SUBMIT, LIST, POLL, FILE = "/generate", "/task", "/task/", "/files/"
POLL_AFTER = "0.05"
IS_ASYNC = False


class Clock:
    """Time is what the client has waited for. Waits of a second and more pass at once, and are noted; those for the
    sketch engine are shorter."""

    def __init__(self) -> None:
        self.passed, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.passed

    def sleep(self, seconds: float) -> None:
        self.passed += seconds
        if seconds < 1:
            time.sleep(seconds)
        else:
            self.waits.append(round(seconds, 1))

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


def attempt(key: str, do: Callable[[Any], Any], *faults: tuple[str, Fault]) -> tuple[Any, list[float], Server]:
    """What a call returns or raises, its waits, and the server as it saw the call."""
    server, clock = Server(*faults), Clock()
    threads = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep)
    with patch("tintype._core.time", threads), patch("tintype._client.time", threads), \
            patch("tintype._client.asyncio", SimpleNamespace(sleep=clock.sleep_async)):
        try:
            if IS_ASYNC:
                value = asyncio.run(do(tintype.AsyncClient(url, key, transport=server)))
            else:
                value = do(tintype.Client(url, key, transport=server))
        except tintype.TintypeError as raised:
            value = raised
    assert not server.faults, "every fault had its request"
    return value, clock.waits, server


def spent(key: str) -> int:
    with tintype.Client(url + "/api/v1/", key) as client:
        return 100 - client.credits()


def a_lost_submit_is_never_repeated() -> None:
    key = keys.pop()
    made, waits, server = attempt(key, lambda client: client.generate("a boat"), (SUBMIT, lost_answer))
    assert isinstance(made, tintype.Generated) and made.task.status == "completed", made
    assert (waits, server.submits(), spent(key)) == ([7], 1, 2)

    key = keys.pop()
    raised, waits, server = attempt(key, lambda client: client.submit("a boat"), (SUBMIT, lost_request))
    assert isinstance(raised, tintype.SubmitUnanswered) and raised.candidates == [], raised
    assert (waits, server.submits(), spent(key)) == ([7], 1, 0)
    # A gateway may have passed the submit on before it gave up.
    raised, waits, server = attempt(key, lambda client: client.submit("a boat"), (SUBMIT, page(502)))
    assert isinstance(raised, tintype.SubmitUnanswered) and (waits, server.submits()) == ([7], 1), raised
    faults = [(SUBMIT, lost_answer), *[(LIST, lost_request)] * 4]
    raised, waits, server = attempt(key, lambda client: client.submit("a boat"), *faults)
    assert isinstance(raised, tintype.SubmitUnanswered) and raised.candidates is None, raised
    assert (waits, server.submits(), spent(key)) == ([7, 2, 4, 8], 1, 2)
    # Now the account has a task that this submit may have made, beside its own.

    def sooner(_: Any, headers: httpx.Headers) -> None:
        headers["date"] = format_datetime(parsedate_to_datetime(headers["date"]) - timedelta(minutes=1), usegmt=True)

    faults = [(SUBMIT, lost_answer), (LIST, changed(sooner))]
    raised, _, server = attempt(key, lambda client: client.submit("a boat"), *faults)
    assert isinstance(raised, tintype.SubmitUnanswered) and len(raised.candidates or []) == 2, raised
    # The tasks are older than a submit that begins an hour later.
    later = changed(lambda _, headers: headers.update({"date": "Wed, 01 Jan 2098 00:00:00 GMT"}))
    raised, _, _ = attempt(key, lambda client: client.submit("a boat"), (SUBMIT, lost_request), (LIST, later))
    assert isinstance(raised, tintype.SubmitUnanswered) and raised.candidates == [], raised


def a_refused_submit_is_repeated_as_the_interface_says() -> None:
    key = keys.pop()
    limited = [(SUBMIT, refused(429, "RATE_LIMITED", retry_after="3")), *[(SUBMIT, refused(429, "RATE_LIMITED"))] * 7]
    made, waits, _ = attempt(key, lambda client: client.submit("a boat"), *limited)
    assert isinstance(made, tintype.Task) and waits == [3, 2, 4, 8, 16, 32, 60, 60], (made, waits)
    failing = (SUBMIT, refused(500, "INTERNAL_ERROR"))
    made, waits, _ = attempt(key, lambda client: client.submit("a boat"), *[failing] * 3)
    assert isinstance(made, tintype.Task) and waits == [2, 4, 8], made
    assert spent(key) == 4
    raised, waits, server = attempt(key, lambda client: client.submit("a boat"), *[failing] * 4)
    assert isinstance(raised, tintype.InternalError) and (waits, server.submits()) == ([2, 4, 8], 4), raised
    patient = (SUBMIT, refused(429, "RATE_LIMITED", retry_after="3600"))
    raised, waits, _ = attempt(key, lambda client: client.submit("a boat"), patient)
    assert isinstance(raised, tintype.RateLimited) and (raised.retry_after, waits) == (3600, []), raised
    for fault in (page(404), page(302, location="https://other.example.com/")):
        raised, waits, server = attempt(key, lambda client: client.submit("a boat"), (SUBMIT, fault))
        assert isinstance(raised, tintype.WrongServer) and (waits, len(server.seen)) == ([], 1), raised
    with tintype.Client("http://127.0.0.1:9", key) as nowhere:
        try:
            nowhere.submit("a boat")
        except tintype.NoConnection as refusal:
            assert "nothing was sent" in str(refusal)
    assert spent(key) == 4


def a_poll_is_repeated_as_the_interface_says() -> None:
    key = keys.pop()
    missing = (POLL, refused(404, "NOT_FOUND"))
    made, waits, _ = attempt(key, lambda client: client.generate("a boat"), missing)
    assert isinstance(made, tintype.Generated) and waits == [1], made
    raised, waits, _ = attempt(key, lambda client: client.generate("a boat"), missing, missing)
    assert isinstance(raised, tintype.NotFound) and raised.task_id and waits == [1], raised
    faults = [(POLL, lost_request), (POLL, page(503)), (POLL, refused(429, "RATE_LIMITED", retry_after="9"))]
    made, waits, _ = attempt(key, lambda client: client.wait(raised.task_id), *faults)
    assert made.status == "completed" and waits == [2, 4, 9], made

    # Without advice, the first poll is after 10 seconds, and the last before 10 minutes.
    def silent(data: Any, headers: httpx.Headers) -> None:
        data.update(status="processing", images=None)
        headers.pop("x-poll-after", None)

    faults = [(SUBMIT, changed(silent)), *[(POLL, changed(silent))] * 119]
    raised, waits, server = attempt(key, lambda client: client.generate("a boat"), *faults)
    assert isinstance(raised, tintype.NotFinished) and waits == [10, *[5] * 118], (raised, len(waits))
    evil = changed(lambda data, _: data.update(task_id="../../" + "a" * 21))
    raised, _, _ = attempt(key, lambda client: client.get(raised.task_id), *[(POLL, evil)] * 1)
    assert isinstance(raised, tintype.NoAnswer), raised


def the_key_does_not_go_to_the_file_host() -> None:
    key = keys.pop()
    faults = [(FILE, page(503)), (FILE, lost_request), (FILE, page(429, **{"retry-after": "5"}))]
    made, waits, server = attempt(key, lambda client: client.generate("a boat"), *faults)
    assert isinstance(made, tintype.Generated) and waits == [2, 4, 5], made
    assert {(path.startswith("/files/"), with_key) for _, path, with_key in server.seen} == {(True, False), (False, True)}
    for fault in (page(404), page(200)):
        raised, waits, _ = attempt(key, lambda client: client.download(made.task), (FILE, fault))
        assert isinstance(raised, tintype.NoImage) and waits == [], raised


def errors_have_classes() -> None:
    raised, _, _ = attempt("tt_wrong", lambda client: client.submit("a boat"))
    assert isinstance(raised, tintype.Unauthorized) and (raised.status, raised.code) == (401, "UNAUTHORIZED"), raised
    raised, _, server = attempt(poor, lambda client: client.submit("a boat", n=2))
    assert isinstance(raised, tintype.InsufficientCredits) and (raised.required, raised.available) == (4, 0), raised
    copy = pickle.loads(pickle.dumps(raised))
    assert (str(copy), copy.required, copy.request_id) == (str(raised), 4, raised.request_id) and raised.request_id
    raised, _, _ = attempt(poor, lambda client: client.submit("a boat", aspect_ratio="17:9"))
    assert isinstance(raised, tintype.InvalidRequest), raised
    raised, _, _ = attempt(poor, lambda client: client.get("../account?x="))
    assert isinstance(raised, tintype.NotFound), raised
    raised, _, _ = attempt(keys[0], lambda client: client.generate("a boat [[fail]]"))
    assert isinstance(raised, tintype.TaskFailed) and raised.task_id and raised.reason in str(raised), raised
    for address, bad in [("http://example.com", poor), (url + "?a", poor), ("ftp://x", poor), (url, "a b"), (url, "")]:
        try:
            raise AssertionError(tintype.Client(address, bad))
        except ValueError:
            pass


def files_are_complete_or_absent(key: str) -> None:
    def size(png: bytes) -> str:
        return "{}x{}".format(*struct.unpack(">II", png[16:24]))

    place = Path(folder) / "deeper"
    with tintype.Client(url, key) as client:
        result = client.generate("a lake at dawn", n=2, aspect_ratio="16:9")
        paths = result.save(place)
        assert [size(path.read_bytes()) for path in paths] == ["1280x720"] * 2
        assert [path.name for path in paths] == [f"{result.task.task_id}-{i}.png" for i in (1, 2)]
        assert client.get(result.task.task_id).images == result.task.images
        assert client.download(result.task) == result.images
    paths[1].write_bytes(b"")
    assert result.save(place) == paths, "an earlier call saved the first, and a crash left the second empty"
    paths[0].write_bytes(b"mine")
    try:
        raise AssertionError(result.save(place))
    except FileExistsError:
        assert paths[0].read_bytes() == b"mine"
    assert sorted(place.iterdir()) == paths, "nothing is left over"


async def coroutines(key: str) -> None:
    async with tintype.AsyncClient(url, key) as client:
        both = await asyncio.gather(client.generate("a boat"), client.generate("a fox"))
        listed = [task.task_id async for task in client.list(page_size=1)]
        assert [one.task.task_id in listed for one in both] == [True, True]
        task = await client.submit("a boat [[delay 10s]]")
        waiting = asyncio.create_task(client.wait(task.task_id))
        await asyncio.sleep(0)
        waiting.cancel()
        try:
            raise AssertionError(await waiting)
        except asyncio.CancelledError:
            assert (await client.get(task.task_id)).status == "processing"


def threads(key: str) -> None:
    """Threads that share a client take no task of each other."""
    with tintype.Client(url, key) as client:
        made = list[str]()
        each = [threading.Thread(target=lambda: made.append(client.generate("a boat").task.task_id)) for _ in range(4)]
        for thread in each:
            thread.start()
        for thread in each:
            thread.join()
        assert len(set(made)) == 4 and set(made) < {task.task_id for task in client.list(page_size=3)}


assert version("tintype") == tintype.__version__
for IS_ASYNC in (False, True):
    a_lost_submit_is_never_repeated()
    a_refused_submit_is_repeated_as_the_interface_says()
    a_poll_is_repeated_as_the_interface_says()
    the_key_does_not_go_to_the_file_host()
    errors_have_classes()
last = keys.pop()
files_are_complete_or_absent(last)
asyncio.run(coroutines(last))
threads(last)
print(f"tintype {tintype.__version__}: {len(keys)} keys left")
