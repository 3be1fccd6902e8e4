"""Runs tasks with the client for Python that openapi-generator makes: python3 generated.py URL KEY"""

import sys

from openapi_client import ApiClient, ApiException, AspectRatio, Configuration, CreatedTask, EndedTask, GenerateRequest
from openapi_client import ImagesApi

url, key = sys.argv[1:]
images = ImagesApi(ApiClient(Configuration(host=url, access_token=key)))

# A prompt is all that a request needs.
created = images.generate(GenerateRequest(prompt="a boat")).data.actual_instance
assert isinstance(created, CreatedTask), created
while True:
    found = images.get_task(created.task_id).data
    if found.status != "processing":
        break
assert found.status == "completed", found
for image in found.images:
    print(image.url, image.content_type.value)

for prompt, end in ("a boat", "completed"), ("a boat [[fail]]", "failed"):
    waited = images.generate(GenerateRequest(prompt=prompt), prefer="wait=30").data.actual_instance
    assert isinstance(waited, EndedTask), waited
    assert waited.status == end and bool(waited.images) != bool(waited.error), waited

wide = GenerateRequest(prompt="a boat", aspect_ratio=AspectRatio.Ratio16x9, n=2, reference_images=[])
second = images.generate(wide).data.actual_instance
assert images.list_tasks(limit=1).data.items[0].task_id == second.task_id
try:
    images.get_task("imgmodel-AAAAAAAAAAAAAAAAAAAAA")
except ApiException as error:
    assert (error.status, error.data.error.code) == (404, "NOT_FOUND"), error
else:
    raise AssertionError("there is such a task")
