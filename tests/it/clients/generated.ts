// Runs tasks with the client that openapi-generator makes for fetch: node generated.js URL KEY
import { Configuration, ImagesApi, ResponseError, Status } from "./generated/index.js";

const [basePath = "", key = ""] = process.argv.slice(2);
const images = new ImagesApi(new Configuration({ basePath, accessToken: key }));

async function main(): Promise<void> {
  // A prompt is all that a request needs.
  const created = (await images.generate({ generateRequest: { prompt: "a boat" } })).data;
  let found = (await images.getTask({ id: created.taskId })).data;
  while (found.status === Status.Processing) found = (await images.getTask({ id: created.taskId })).data;
  for (const image of found.images ?? []) console.log(image.url, image.contentType);

  for (const [prompt, end] of [["a boat", "completed"], ["a boat [[fail]]", "failed"]] as const) {
    const waited = (await images.generate({ generateRequest: { prompt }, prefer: "wait=30" })).data;
    if (waited.status === "processing") throw new Error("the submit did not wait");
    if (waited.status !== end || !waited.images !== !!waited.error) throw new Error(JSON.stringify(waited));
  }

  const refused = await images.getTask({ id: "imgmodel-AAAAAAAAAAAAAAAAAAAAA" }).catch((error: unknown) => error);
  if (!(refused instanceof ResponseError) || refused.response.status !== 404) throw new Error("there is such a task");
}

void main();
