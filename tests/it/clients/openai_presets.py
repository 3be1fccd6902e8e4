"""A preset and settings with the official Python client of OpenAI. Arguments: base URL, key."""

import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)


def error(**settings):
    """The message and the field of a refused call."""
    try:
        client.images.generate(prompt="a boat", model="draft", extra_body=settings)
    except openai.BadRequestError as raised:
        return [raised.body["message"], raised.param]
    return None


refused = [error(seed=2**31), error(seed=-2)]
models = [model.id for model in client.models.list()]
answers = [
    client.images.with_raw_response.generate(
        prompt="a boat", model="draft", extra_body={"seed": 5, "num_inference_steps": 9, "strength": 1}
    )
    for _ in range(2)
]
print(
    json.dumps(
        {
            "refused": refused,
            "models": models,
            "same": len({answer.parse().data[0].b64_json for answer in answers}) == 1,
            "ignored": answers[0].headers["x-ignored-fields"],
        }
    )
)
