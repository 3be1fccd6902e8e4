"""Generates and edits through a running Open WebUI, and looks at what became of it. Arguments: its URL, the URL of Tintype, a
key of Tintype."""

import base64
import io
import sys

import requests
from PIL import Image

webui, tintype, key = sys.argv[1:]
token = requests.post(f"{webui}/api/v1/auths/signin", json={"email": "", "password": ""}).json()["token"]
session = requests.Session()
session.headers["Authorization"] = f"Bearer {token}"


def pictures(path, body):
    """The pictures that a call of Open WebUI makes."""
    answer = session.post(f"{webui}/api/v1/images/{path}", json=body)
    assert answer.ok, (answer.status_code, answer.text)
    files = [session.get(webui + file["url"]) for file in answer.json()]
    return [Image.open(io.BytesIO(file.content)) for file in files]


def picture(width, height):
    """A picture as a data URL, as the chat of Open WebUI holds it."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


generated = pictures("generations", {"prompt": "a boat", "n": 2})
assert [(image.format, image.size) for image in generated] == [("PNG", (1248, 832))] * 2, generated
edited = pictures("edit", {"prompt": "a boat", "image": picture(90, 160)})
assert [image.size for image in edited] == [(720, 1280)], edited
both = pictures("edit", {"prompt": "a boat", "image": [picture(64, 64), picture(90, 160)], "size": "1024x1536"})
assert [image.size for image in both] == [(832, 1248)], both
refused = session.post(f"{webui}/api/v1/images/generations", json={"prompt": "a boat", "n": 5})
assert refused.status_code == 400, refused.text

headers = {"Authorization": f"Bearer {key}"}
tasks = requests.get(f"{tintype}/api/v1/images/task", headers=headers).json()["data"]["items"]
assert [(task["status"], task["type"]) for task in tasks] == [
    ("completed", "image-to-image"),
    ("completed", "image-to-image"),
    ("completed", "text-to-image"),
], tasks
account = requests.get(f"{tintype}/api/v1/account", headers=headers).json()["data"]
assert account["credits"] == 92, account
print("Open WebUI generated two pictures, edited one and edited two.")
