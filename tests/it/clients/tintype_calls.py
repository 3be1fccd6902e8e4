"""Calls of Tintype's Python client, as a program of a user makes them. Arguments: URL, key, key of an account without
credits, folder for pictures."""

import asyncio
import json
import struct
import sys

import httpx
import tintype

url, key, poor_key, folder = sys.argv[1:]


def size(png):
    """Width and height of a PNG, from its header."""
    return "{}x{}".format(*struct.unpack(">II", png[16:24]))


def error(call):
    """The class of the error that a call raises, and a fact about it."""
    try:
        call()
    except tintype.InsufficientCredits as raised:
        return [type(raised).__name__, f"{raised.required} of {raised.available}"]
    except tintype.ApiError as raised:
        return [type(raised).__name__, str(raised.status)]
    except tintype.TaskFailed as raised:
        return [type(raised).__name__, ""]
    return None


async def two():
    """Two tasks at once."""
    async with tintype.AsyncClient(url, key) as client:
        both = await asyncio.gather(client.generate("a boat"), client.generate("a fox"))
        listed = [task.task_id async for task in client.list(page_size=1)]
        return [one.task.task_id in listed for one in both]


class Losing(httpx.BaseTransport):
    """Loses the answers to submits, or the submits."""

    def __init__(self, arrives):
        self.inner, self.arrives = httpx.HTTPTransport(), arrives

    def handle_request(self, request):
        if request.method == "POST":
            if self.arrives:
                self.inner.handle_request(request).read()
            raise httpx.ReadError("lost")
        return self.inner.handle_request(request)


def lossy(arrives):
    """A client that gets no answer to a submit. Tasks of the second before it are known, so that they are not taken for
    its own."""
    client = tintype.Client(url, key)
    client._core.known.extend(task.task_id for task in client.list())
    client._http = httpx.Client(transport=Losing(arrives))
    return client


def lost():
    """The state of the task whose submit got no answer, and the error about one that never arrived."""
    with lossy(True) as client:
        found = client.generate("a lost boat").task.status
    with lossy(False) as client:
        try:
            client.generate("a boat that never sailed")
        except tintype.SubmitUnanswered as raised:
            return [found, type(raised).__name__, raised.candidates]
    return [found, None, None]


with tintype.Client(url, key) as client:
    before = client.credits()
    result = client.generate("a lake at dawn", n=2, aspect_ratio="16:9")
    saved = [size(path.read_bytes()) for path in result.save(folder)]
    try:
        again = str(result.save(folder))
    except FileExistsError as raised:
        again = type(raised).__name__
    both = asyncio.run(two())
    found = lost()
    spent, tasks = before - client.credits(), len(list(client.list()))
    wrong, poor = tintype.Client(url, "tt_wrong"), tintype.Client(url, poor_key)
    errors = [
        error(lambda: wrong.submit("a boat")),
        error(lambda: client.submit("a boat", aspect_ratio="17:9")),
        error(lambda: poor.submit("a boat")),
        error(lambda: client.get("no-such-task")),
        error(lambda: client.generate("a boat [[fail]]")),
    ]
    for one in (wrong, poor):
        one.close()
said = {"saved": saved, "again": again, "async": both, "found": found, "spent": spent, "tasks": tasks, "errors": errors}
print(json.dumps(said))
