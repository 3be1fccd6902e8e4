"""A stream that the official Python client of OpenAI gives up because its time is over, and the same call again once
standard input ends. Arguments: base URL, key."""

import base64
import json
import sys

import openai

base_url, key = sys.argv[1:]
client = openai.OpenAI(base_url=base_url, api_key=key, timeout=60.0, max_retries=0)


def generate(client):
    headers = {"Idempotency-Key": "order 66"}
    return client.images.with_raw_response.generate(prompt="a boat", stream=True, extra_headers=headers)


# The first sign of life comes after 10 s.
first = generate(client.with_options(timeout=4.0))
given_up = None
try:
    for event in first.parse():
        pass
except openai.APIError as raised:
    given_up = type(raised).__name__
# The test has seen that nobody waits.
sys.stdin.read()
again = generate(client)
pictures = [base64.b64decode(event.b64_json)[:4].hex() for event in again.parse()]
tasks = [answer.headers["x-tintype-task-id"] for answer in (first, again)]
print(json.dumps({"given_up": given_up, "pictures": pictures, "tasks": tasks}))
