"""Streams that a program of a user reads with the official Python client of OpenAI. Arguments: base URL, key, folder of
pictures."""

import base64
import json
import pathlib
import sys

import openai

base_url, key, folder = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=key, timeout=60.0, max_retries=5)


def read(answer):
    """The events of a stream, with the first bytes of their files."""
    return [[event.type, base64.b64decode(event.b64_json)[:4].hex(), event.size] for event in answer.parse()]


# The connection of the first attempt breaks before its answer; the client repeats the call by itself.
answer = client.images.with_raw_response.generate(prompt="a boat", size="1536x1024", n=2, stream=True, partial_images=1)
generated = read(answer)
pictures = [pathlib.Path(folder, name) for name in ("wide.png", "narrow.png")]
edit = client.images.with_raw_response.edit(image=pictures, prompt="a boat", stream=True, output_format="webp")
edited = read(edit)
refusal = None
try:
    for event in client.images.generate(prompt="a boat [[policy]]", stream=True):
        pass
except openai.APIError as raised:
    refusal = [type(raised).__name__, raised.code]
print(
    json.dumps(
        {
            "task": answer.headers["x-tintype-task-id"],
            "attempts": answer.http_request.headers["x-stainless-retry-count"],
            "generated": generated,
            "edit": edit.headers["x-tintype-task-id"],
            "edited": edited,
            "refusal": refusal,
        }
    )
)
