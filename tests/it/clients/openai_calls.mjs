// Calls of the official JavaScript client of OpenAI, as a program of a user makes them. Arguments: base URL, key, poor key,
// folder of pictures.
import { createReadStream } from "node:fs";
import { join } from "node:path";

import OpenAI, { toFile } from "openai";

const [baseURL, apiKey, poorKey, folder] = process.argv.slice(2);

/** The class of the error that a call throws, its code and its field. */
async function error(call) {
  try {
    await call();
  } catch (thrown) {
    return [thrown.constructor.name, thrown.code ?? null, thrown.param ?? null];
  }
  return null;
}

// Its time is over before the first picture is made; the client repeats the call by itself.
let attempts = 0;
const counting = (url, init) => {
  attempts = Number(new Headers(init.headers).get("x-stainless-retry-count"));
  return fetch(url, init);
};
const client = new OpenAI({ baseURL, apiKey, timeout: 5_000, maxRetries: 50, fetch: counting });
const { data, response } = await client.images.generate({ prompt: "a boat", size: "1536x1024", n: 2 }).withResponse();
const repeated = attempts;
const picture = (name) => createReadStream(join(folder, name));
const pictures = [picture("wide.png"), picture("narrow.png")];
const edited = await client.images.edit({ image: pictures, prompt: "a boat", size: "1024x1536" }).withResponse();
const partly = { image: picture("wide.png"), mask: picture("mask.png"), prompt: "a boat" };
const masked = await client.images.edit(partly).withResponse();
const noPicture = await toFile(Buffer.from("no picture"), "a.png");
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const boat = { prompt: "a boat" };
console.log(
  JSON.stringify({
    task: response.headers.get("x-tintype-task-id"),
    attempts: String(repeated),
    pictures: data.data.map((image) => Buffer.from(image.b64_json, "base64").subarray(0, 4).toString("hex")),
    edit: edited.response.headers.get("x-tintype-task-id"),
    edited: edited.data.size,
    masked: masked.response.headers.get("x-tintype-task-id"),
    errors: [
      await error(() => client.images.edit({ ...boat, image: picture("wide.png"), mask: picture("narrow.png") })),
      await error(() => client.images.edit({ ...boat, image: noPicture })),
      await error(() => client.images.generate({ ...boat, size: "large" })),
      await error(() => client.withOptions({ apiKey: "tt_wrong" }).images.generate(boat)),
      await error(() => client.withOptions({ apiKey: poorKey }).images.generate(boat)),
    ],
    models,
  }),
);
