// Runs a task with the client that hey-api generates: node hey.js URL KEY
import { createClient } from "./hey/client/index.js";
import { generate, getTask, listTasks } from "./hey/sdk.gen.js";
import { AspectRatio, CreatedStatus, ErrorCode, Status } from "./hey/types.gen.js";

const [baseUrl = "", key = ""] = process.argv.slice(2);
const client = createClient({ baseUrl, auth: key });

async function main(): Promise<void> {
  // A prompt is all that a request needs.
  const { data: created, error } = await generate({ client, body: { prompt: "a boat" } });
  if (error || !created) throw new Error(`${error?.error.code}: ${error?.error.message}`);
  for (;;) {
    const { data: found } = await getTask({ client, path: { id: created.data.task_id } });
    if (!found) throw new Error("the task is gone");
    if (found.data.status === Status.PROCESSING) continue;
    if (found.data.status !== Status.COMPLETED) throw new Error(found.data.error ?? "no reason");
    for (const image of found.data.images ?? []) console.log(image.url, image.content_type);
    break;
  }

  for (const [prompt, end] of [["a boat", Status.COMPLETED], ["a boat [[fail]]", Status.FAILED]] as const) {
    const { data: waited } = await generate({ client, headers: { Prefer: "wait=30" }, body: { prompt } });
    if (!waited || waited.data.status === CreatedStatus.PROCESSING) throw new Error("the submit did not wait");
    const { images, error: message } = waited.data;
    if (`${waited.data.status}` !== end || !images !== !!message) throw new Error(JSON.stringify(waited));
  }

  const wide = { prompt: "a boat", aspect_ratio: AspectRatio.RATIO16X9, n: 2, reference_images: [] };
  const second = await generate({ client, body: wide });
  const page = await listTasks({ client, query: { limit: 1 } });
  const newest = page.data?.data.items[0]?.task_id;
  if (!newest || newest !== second.data?.data.task_id) throw new Error("the newest task is not first");
  const refused = await listTasks({ client, query: { limit: 1000 } });
  if (refused.error?.error.code !== ErrorCode.INVALID_REQUEST) throw new Error("a limit of 1000 is accepted");
}

void main();
