"""Generates and edits with LiteLLM, as a gateway or a program of a user does. Arguments: URL of Tintype, a key, a key of an
account without credits, and a folder for pictures."""

import base64
import json
import os
import pathlib
import sys
import urllib.request

# Otherwise it fetches its list of prices.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

url, key, poor_key, folder = sys.argv[1:]
litellm.telemetry = False
litellm.drop_params = True
# It prints hints beside errors.
litellm.suppress_debug_info = True
to = {"api_base": f"{url}/v1", "api_key": key}


def read(path):
    """The data of an answer of the API."""
    request = urllib.request.Request(url + path, headers={"Authorization": f"Bearer {key}"})
    return json.load(urllib.request.urlopen(request))["data"]


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
assert beginnings(generated) == ["89504e47", "89504e47"], generated
assert (generated.size, generated.usage.total_tokens) == ("1536x1024", 4), generated
for index, image in enumerate(generated.data):
    pathlib.Path(folder, f"{index}.png").write_bytes(base64.b64decode(image.b64_json))
pictures = [pathlib.Path(folder, name).open("rb") for name in ("0.png", "1.png")]
edited = litellm.image_edit(model="openai/gpt-image-1", image=pictures, prompt="a boat", size="1024x1536", **to)
assert beginnings(edited) == ["89504e47"], edited
newest = read("/api/v1/images/task?limit=1")["items"][0]
assert (newest["status"], newest["type"]) == ("completed", "image-to-image"), newest

errors = [
    error(lambda: litellm.image_generation(model="openai/gpt-image-1", prompt="a boat", max_retries=0, **to | changed))
    for changed in ({"api_key": poor_key}, {"api_key": "tt_wrong"}, {"size": "large"})
]
assert errors == ["RateLimitError", "AuthenticationError", "BadRequestError"], errors
assert read("/api/v1/account")["credits"] == 94, "only three pictures are charged"
print("LiteLLM generated two pictures and edited them, and its errors have the right classes.")
