"""Calls of the official Python client of OpenAI, as a program of a user makes them. Arguments: base URL, key, poor key,
folder of pictures."""

import base64
import json
import pathlib
import sys

import openai

base_url, key, poor_key, folder = sys.argv[1:]


def error(call):
    """The class of the error that a call raises, its code and its field."""
    try:
        call()
    except openai.APIStatusError as raised:
        return [type(raised).__name__, raised.code, raised.param]
    return None


# Its time is over before the first picture is made; the client repeats the call by itself.
client = openai.OpenAI(base_url=base_url, api_key=key, timeout=5.0, max_retries=50)
answer = client.images.with_raw_response.generate(prompt="a boat", size="1536x1024", n=2)
pictures = [pathlib.Path(folder, name) for name in ("wide.png", "narrow.png")]
edited = client.images.with_raw_response.edit(image=pictures, prompt="a boat", size="1024x1536")
masked = client.images.with_raw_response.edit(
    image=pictures[0], mask=pathlib.Path(folder, "mask.png"), prompt="a boat"
)
print(
    json.dumps(
        {
            "task": answer.headers["x-tintype-task-id"],
            "attempts": answer.http_request.headers["x-stainless-retry-count"],
            "pictures": [base64.b64decode(image.b64_json)[:4].hex() for image in answer.parse().data],
            "edit": edited.headers["x-tintype-task-id"],
            "edited": edited.parse().size,
            "masked": masked.headers["x-tintype-task-id"],
            "errors": [
                error(lambda: client.images.edit(image=pictures[0], mask=pictures[1], prompt="a boat")),
                error(lambda: client.images.edit(image=("a.png", b"no picture"), prompt="a boat")),
                error(lambda: client.images.generate(prompt="a boat", size="large")),
                error(lambda: client.with_options(api_key="tt_wrong").images.generate(prompt="a boat")),
                error(lambda: client.with_options(api_key=poor_key).images.generate(prompt="a boat")),
            ],
            "models": [model.id for model in client.models.list()],
        }
    )
)
