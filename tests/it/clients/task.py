"""Runs a task with the client that openapi-python-client generates: python3 task.py URL KEY"""

import sys

from tintype_client import AuthenticatedClient
from tintype_client.api.images import generate, get_task, list_tasks
from tintype_client.models import AspectRatio, CreatedTask, EndedStatus, EndedTask, ErrorCode, ErrorEnvelope
from tintype_client.models import GenerateRequest, Status, SubmittedTaskEnvelope, TaskEnvelope, TaskPageEnvelope

url, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key)

# A prompt is all that a request needs.
created = generate.sync(client=client, body=GenerateRequest(prompt="a boat"))
assert isinstance(created, SubmittedTaskEnvelope), created
assert isinstance(created.data, CreatedTask), created
while True:
    found = get_task.sync(client=client, id=created.data.task_id)
    assert isinstance(found, TaskEnvelope), found
    if found.data.status != Status.PROCESSING:
        break
assert found.data.status == Status.COMPLETED, found.data.error
for image in found.data.images or []:
    print(image.url, image.content_type)

for prompt, end in ("a boat", EndedStatus.COMPLETED), ("a boat [[fail]]", EndedStatus.FAILED):
    waited = generate.sync(client=client, body=GenerateRequest(prompt=prompt), prefer="wait=30")
    assert isinstance(waited, SubmittedTaskEnvelope), waited
    assert isinstance(waited.data, EndedTask), waited
    assert waited.data.status == end and bool(waited.data.images) != bool(waited.data.error), waited

wide = GenerateRequest(prompt="a boat", aspect_ratio=AspectRatio.RATIO_16_X_9, n=2, reference_images=[])
second = generate.sync(client=client, body=wide)
assert isinstance(second, SubmittedTaskEnvelope), second
page = list_tasks.sync(client=client, limit=1)
assert isinstance(page, TaskPageEnvelope), page
assert page.data.items[0].task_id == second.data.task_id
refused = list_tasks.sync(client=client, limit=1000)
assert isinstance(refused, ErrorEnvelope), refused
assert refused.error.code == ErrorCode.INVALID_REQUEST
