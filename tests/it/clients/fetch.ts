// Runs a task with the client of openapi-fetch and the types of openapi-typescript: node fetch.js URL KEY
import createClient from "openapi-fetch";
import { AspectRatio, CreatedTaskStatus, ErrorCode, Status, type paths } from "./schema.js";

const [baseUrl = "", key = ""] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });

async function main(): Promise<void> {
  // A prompt is all that a request needs.
  const { data: created, error } = await client.POST("/api/v1/images/generate", { body: { prompt: "a boat" } });
  if (error) throw new Error(`${error.error.code}: ${error.error.message}`);
  for (;;) {
    const { data: found } = await client.GET("/api/v1/images/task/{id}", { params: { path: { id: created.data.task_id } } });
    if (!found) throw new Error("the task is gone");
    if (found.data.status === Status.processing) continue;
    if (found.data.status !== Status.completed) throw new Error(found.data.error ?? "no reason");
    for (const image of found.data.images ?? []) console.log(image.url, image.content_type);
    break;
  }

  for (const [prompt, end] of [["a boat", Status.completed], ["a boat [[fail]]", Status.failed]] as const) {
    const header = { Prefer: "wait=30" };
    const { data: waited } = await client.POST("/api/v1/images/generate", { params: { header }, body: { prompt } });
    if (!waited || waited.data.status === CreatedTaskStatus.processing) throw new Error("the submit did not wait");
    const { images, error: message } = waited.data;
    if (`${waited.data.status}` !== end || !images !== !!message) throw new Error(JSON.stringify(waited));
  }

  const wide = { prompt: "a boat", aspect_ratio: AspectRatio.Ratio16x9, n: 2, reference_images: [] };
  const second = await client.POST("/api/v1/images/generate", { body: wide });
  if (!second.data) throw new Error("refused");
  const page = await client.GET("/api/v1/images/task", { params: { query: { limit: 1 } } });
  if (page.data?.data.items[0]?.task_id !== second.data.data.task_id) throw new Error("the newest task is not first");
  const refused = await client.GET("/api/v1/images/task", { params: { query: { limit: 1000 } } });
  if (refused.error?.error.code !== ErrorCode.INVALID_REQUEST) throw new Error("a limit of 1000 is accepted");
}

void main();
