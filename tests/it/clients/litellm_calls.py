"""Calls of LiteLLM, as a gateway or a program of a user makes them. Arguments: base URL, key, poor key, folder of pictures."""

import base64
import json
import os
import pathlib
import sys

# Otherwise it fetches its list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

base_url, key, poor_key, folder = sys.argv[1:]
litellm.telemetry = False
litellm.drop_params = True
# It prints hints beside errors.
litellm.suppress_debug_info = True
to = {"api_base": base_url, "api_key": key}


def error(call):
    """The class of the error that a call raises."""
    try:
        call()
    except Exception as raised:
        return type(raised).__name__
    return None


def beginnings(answer):
    """The first bytes of the files of an answer."""
    return [base64.b64decode(image.b64_json)[:4].hex() for image in answer.data]


generated = litellm.image_generation(model="openai/gpt-image-1", prompt="a boat", size="1536x1024", n=2, **to)
pictures = [pathlib.Path(folder, name).open("rb") for name in ("wide.png", "narrow.png")]
edited = litellm.image_edit(model="openai/gpt-image-1", image=pictures, prompt="a boat", size="1024x1536", **to)
poor = to | {"api_key": poor_key}
wrong = to | {"api_key": "tt_wrong"}
print(
    json.dumps(
        {
            "generated": beginnings(generated),
            "size": generated.size,
            "tokens": generated.usage.total_tokens,
            "edited": beginnings(edited),
            "errors": [
                error(lambda: litellm.image_generation(model="openai/gpt-image-1", prompt="a boat", max_retries=0, **poor)),
                error(lambda: litellm.image_generation(model="openai/gpt-image-1", prompt="a boat", max_retries=0, **wrong)),
                error(lambda: litellm.image_generation(model="openai/gpt-image-1", prompt="a boat", size="large", **to)),
            ],
        }
    )
)
